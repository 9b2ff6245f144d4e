// Plug-in for tests of hangs: its forward blocks on selected ranks, while their processes otherwise stay
// alive. `args` is a directory; a rank blocks in its layer while the directory contains a file named after
// its process id.
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <thread>

#include "fsdp/model/testing/small_model.h"

namespace {

constexpr auto kLookEvery = std::chrono::milliseconds(10);

std::unique_ptr<fsdpd::UserModel> Make(const std::string& args) {
  if (args.empty()) throw std::invalid_argument("args: want a directory");
  return std::make_unique<fsdpd::SmallModel>([mine = std::filesystem::path(args) / std::to_string(getpid())] {
    while (std::filesystem::exists(mine)) std::this_thread::sleep_for(kLookEvery);
  });
}

}  // namespace

FSDPD_PLUGIN(Make)
