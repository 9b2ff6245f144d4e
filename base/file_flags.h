// Files that a daemon's flags name, in what it says when one of them keeps it from starting: errors of files
// begin with their path, and who reads them looks for a flag.
//
// Pure.
#pragma once

#include <absl/status/status.h>

#include <string>
#include <vector>

namespace fsdpd {

struct FileFlag {
  const char* name;  // "--tls-cert"
  std::string path;  // Empty where the flag is not given.
};

// The error, with the flag whose file it is of before it.
std::string WithFlag(const std::vector<FileFlag>& flags, const absl::Status& error);

// Whether the error is of such a file and says that its path cannot be opened, as it does not exist, is a
// directory, or is others': another start meets it again. What may pass by itself (a disk that is full, a
// certificate that is replaced) is none.
bool IsWrongPath(const std::vector<FileFlag>& flags, const absl::Status& error);

}  // namespace fsdpd
