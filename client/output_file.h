// A file that a flag of the command line names, for what a command writes beside stdout.
#pragma once

#include <absl/status/status.h>

#include <string>

namespace fsdpd {

// Before what is to be written is made: INVALID_ARGUMENT with `flag` where the file's directory is not there,
// or the path is one.
absl::Status CheckOutput(const char* flag, const std::string& path);

// INVALID_ARGUMENT with `flag` and the reason; what the file had may be gone then.
absl::Status WriteOutput(const char* flag, const std::string& path, const std::string& text);

}  // namespace fsdpd
