// Loader for user models in shared objects (plug-ins; plugin_entry.h defines what a shared object exports).
// Each is loaded once per process and never unloaded, since its units run its code.
//
// The spec of a job contains the plug-in's description from the time of submission. A rank describes the
// shared object again and compares, so a stale file on one node is an error rather than a different model.
//
// Thread-safe. Errors name the file: NOT_FOUND if it cannot be loaded; FAILED_PRECONDITION if it is not a
// plug-in, was built for another version, or its description differs from `config`; INTERNAL with the
// exception that its code threw.
#pragma once

#include <absl/status/statusor.h>

#include <memory>
#include <string>
#include <vector>

#include "fsdp/model/user_model.h"

namespace fsdpd {

absl::StatusOr<std::unique_ptr<UserModel>> LoadPlugin(const std::string& path, const std::string& args);

// Output of `fsdpd-rank --describe-plugin`: v1::Plugin in JSON, without the path.
absl::StatusOr<std::string> DescribePlugin(const std::string& path, const std::string& args);

absl::StatusOr<std::vector<std::unique_ptr<Unit>>> MakePluginUnits(const PluginConfig& config,
                                                                   const ModelFacts& facts,
                                                                   at::Device device);

}  // namespace fsdpd
