// What a plug-in exports: one symbol, from which fsdpd-rank learns whether it can use the plug-in before it
// calls anything else of it. A plug-in's source ends with
//
//   FSDPD_PLUGIN(MakeMyModel)
//
// where `std::unique_ptr<fsdpd::UserModel> MakeMyModel(const std::string& args)` reads `args` (what the job's
// spec has in model.plugin.args, usually JSON) and throws std::exception when it cannot use it.
//
// Units are C++ objects, so both sides must have been compiled from the same version of these headers and
// against the same LibTorch, which the rank has loaded already. fsdpd's own code that a plug-in links
// (AutogradUnit) is a copy of its own: nothing in it is shared by address.
#pragma once

#include <torch/headeronly/version.h>

#include <cstdint>
#include <memory>
#include <string>

#include "base/version.h"
#include "fsdp/model/user_model.h"

namespace fsdpd {

// Changes when unit.h, user_model.h, or what they use of the plan, does.
constexpr int32_t kPluginAbi = 2;
constexpr char kPluginSymbol[] = "fsdpd_plugin";

struct PluginEntry {
  int32_t abi;  // First, for ever: what follows is as this says.
  const char* version;
  const char* torch_version;
  UserModel* (*make)(const std::string& args);  // The caller owns the result.
};

}  // namespace fsdpd

#define FSDPD_PLUGIN(make_model)                                                                  \
  extern "C" __attribute__((visibility("default"))) const fsdpd::PluginEntry* fsdpd_plugin() {    \
    static const fsdpd::PluginEntry entry = {                                                     \
        fsdpd::kPluginAbi, fsdpd::kVersion, TORCH_VERSION,                                        \
        [](const std::string& args) -> fsdpd::UserModel* { return make_model(args).release(); }}; \
    return &entry;                                                                                \
  }
