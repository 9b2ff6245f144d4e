// A plug-in for tests of memory spikes: every few steps its layer takes much more memory than in all others,
// and gives it back at once, for as long as a test wants that. `args` is a directory, and a file `spikes`
// there is the wish.
#include <ATen/ops/empty.h>

#include <filesystem>
#include <stdexcept>
#include <string>

#include "fsdp/model/testing/small_model.h"

namespace {

constexpr int kEvery = 8;  // Few enough that a step's usual peak stays what it is.
constexpr int64_t kBytes = 64 << 20;

std::unique_ptr<fsdpd::UserModel> Make(const std::string& args) {
  if (args.empty()) throw std::invalid_argument("args are to be a directory");
  return std::make_unique<fsdpd::SmallModel>(
      [wish = std::filesystem::path(args) / "spikes", passes = 0]() mutable {
        if (++passes % kEvery == 0 && std::filesystem::exists(wish)) at::empty({kBytes}, at::kByte);
      });
}

}  // namespace

FSDPD_PLUGIN(Make)
