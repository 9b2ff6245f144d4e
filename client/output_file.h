// A file that a flag of the command line names, for what a command writes beside stdout.
#pragma once

#include <absl/status/status.h>

#include <string>

namespace fsdpd {

// INVALID_ARGUMENT with `flag` and the reason; what the file had may be gone then.
absl::Status WriteOutput(const char* flag, const std::string& path, const std::string& text);

}  // namespace fsdpd
