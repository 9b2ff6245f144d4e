// Plug-in for tests of memory spikes: every kEvery steps its layer briefly allocates much more memory than in
// other steps. `args` is a directory; spikes occur while it contains a file named `spikes`.
#include <ATen/ops/empty.h>

#include <filesystem>
#include <stdexcept>
#include <string>

#include "fsdp/model/testing/small_model.h"

namespace {

constexpr int kEvery = 8;  // Rare enough that the usual peak of a step is unaffected.
constexpr int64_t kBytes = 64 << 20;

std::unique_ptr<fsdpd::UserModel> Make(const std::string& args) {
  if (args.empty()) throw std::invalid_argument("args: want a directory");
  return std::make_unique<fsdpd::SmallModel>(
      [wish = std::filesystem::path(args) / "spikes", passes = 0]() mutable {
        if (++passes % kEvery == 0 && std::filesystem::exists(wish)) at::empty({kBytes}, at::kByte);
      });
}

}  // namespace

FSDPD_PLUGIN(Make)
