// The model of a shared object (plugin_entry.h says what that exports). It is loaded once a process and stays
// until the process ends: units are its code.
//
// A job's spec carries what the plug-in said of itself when the job was written. A rank asks the shared
// object again and compares, so an old file on one node is an error message, not another model.
//
// Thread-safe. Errors, all naming the file: NOT_FOUND when it cannot be loaded; FAILED_PRECONDITION when it
// is no plug-in, was built for another version, or describes another model than `config`; INTERNAL with what
// its code threw.
#pragma once

#include <absl/status/statusor.h>

#include <memory>
#include <string>
#include <vector>

#include "fsdp/model/user_model.h"

namespace fsdpd {

absl::StatusOr<std::unique_ptr<UserModel>> LoadPlugin(const std::string& path, const std::string& args);

// What `fsdpd-rank --describe-plugin` prints: v1::Plugin in JSON, without the path.
absl::StatusOr<std::string> DescribePlugin(const std::string& path, const std::string& args);

absl::StatusOr<std::vector<std::unique_ptr<Unit>>> MakePluginUnits(const PluginConfig& config,
                                                                   const ModelFacts& facts,
                                                                   at::Device device);

}  // namespace fsdpd
