// A plug-in for tests of hangs: its forward stands still on the ranks that a test names, and nothing else of
// them does, so that their processes live and stand where they need nobody. `args` is a directory: a rank
// whose process id is the name of a file there stands still in its layer, for as long as that is so.
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
  if (args.empty()) throw std::invalid_argument("args are to be a directory");
  return std::make_unique<fsdpd::SmallModel>([mine = std::filesystem::path(args) / std::to_string(getpid())] {
    while (std::filesystem::exists(mine)) std::this_thread::sleep_for(kLookEvery);
  });
}

}  // namespace

FSDPD_PLUGIN(Make)
