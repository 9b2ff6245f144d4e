// Output file that a flag names, for data that a command writes in addition to stdout.
#pragma once

#include <absl/status/status.h>

#include <string>

namespace fsdpd {

// Checks the path before the command produces its data. Returns INVALID_ARGUMENT with `flag` if the parent
// directory does not exist or the path is a directory.
absl::Status CheckOutput(const char* flag, const std::string& path);

// Replaces the contents of the file. Returns INVALID_ARGUMENT with `flag` and the reason on failure, after
// which the old contents may be lost.
absl::Status WriteOutput(const char* flag, const std::string& path, const std::string& text);

}  // namespace fsdpd
