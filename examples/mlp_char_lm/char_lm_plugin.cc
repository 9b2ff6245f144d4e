// Plug-in with the model of char_lm.h (docs/library.md). It has one size, so it accepts no args.
#include <stdexcept>

#include "examples/mlp_char_lm/char_lm.h"
#include "fsdp/model/plugin_entry.h"

namespace {

std::unique_ptr<fsdpd::UserModel> Make(const std::string& args) {
  if (!args.empty()) throw std::invalid_argument("this model takes no args, not '" + args + "'");
  return std::make_unique<CharLm>(/*layers=*/4, /*width=*/64);
}

}  // namespace

FSDPD_PLUGIN(Make)
