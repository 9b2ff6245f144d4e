// Names of flags in error messages about files: errors of files begin with the path, while users look for the
// flag that keeps a daemon from starting.
//
// Pure.
#pragma once

#include <absl/status/status.h>

#include <string>
#include <vector>

namespace fsdpd {

struct FileFlag {
  const char* name;  // "--tls-cert"
  std::string path;  // Empty if the flag is not set.
};

// The error with its id (error_line.h), prefixed by the flag of its file.
std::string WithFlag(const std::vector<FileFlag>& flags, const absl::Status& error);

// Whether the error means that the path of a flag cannot be opened because it does not exist, is a directory,
// or access is denied: restarting does not help. False for conditions that may pass (full disk, certificate
// being replaced).
bool IsWrongPath(const std::vector<FileFlag>& flags, const absl::Status& error);

}  // namespace fsdpd
