// Entry point of a plug-in: the one exported symbol, from which fsdpd-rank determines compatibility before it
// calls anything else in the shared object. A plug-in's source ends with
//
//   FSDPD_PLUGIN(MakeMyModel)
//
// where `std::unique_ptr<fsdpd::UserModel> MakeMyModel(const std::string& args)` parses `args`
// (model.plugin.args of the spec, usually JSON) and throws a std::exception if they are invalid.
//
// Units are C++ objects, so fsdpd and the plug-in must be compiled from the same version of these headers and
// against the same LibTorch, which the rank has already loaded. fsdpd code that is linked into a plug-in
// (AutogradUnit) is a separate copy; it shares no global state with the rank.
#pragma once

#include <torch/headeronly/version.h>

#include <cstdint>
#include <memory>
#include <string>

#include "base/version.h"
#include "fsdp/model/user_model.h"

namespace fsdpd {

// Incremented when unit.h, user_model.h, or the plan types they use change.
constexpr int32_t kPluginAbi = 2;
constexpr char kPluginSymbol[] = "fsdpd_plugin";

struct PluginEntry {
  int32_t abi;  // Always the first field; it determines the layout of the rest.
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
