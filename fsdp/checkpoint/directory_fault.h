// An error about a directory that somebody wrote into a spec, by what it is the fault of: the path (a file
// stands in its way, nobody may write there), which is another error code than that of a disk or a server
// that fails and may come back.
//
// Thread safety: all functions.
#pragma once

#include <absl/status/status.h>
#include <absl/strings/string_view.h>

#include <string>

namespace fsdpd {

// `doing`: "make /runs/7". Of the path: NOT_FOUND, INVALID_ARGUMENT or PERMISSION_DENIED, with what to do;
// else UNAVAILABLE, as ErrnoStatus() has it.
absl::Status DirectoryFault(absl::string_view doing, int error);

// Makes the directory at `path`, and those that it lies in.
absl::Status MakeDirectory(const std::string& path);

}  // namespace fsdpd
