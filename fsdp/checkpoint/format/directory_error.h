// Error status for a directory named in a spec. Errors of the path itself (a file is in its way, no write
// permission) get other codes than those of a failing disk or server, which may recover.
//
// Thread-safe.
#pragma once

#include <absl/status/status.h>
#include <absl/strings/string_view.h>

#include <string>

namespace fsdpd {

// `doing`: "make /runs/7". Path errors: NOT_FOUND, INVALID_ARGUMENT or PERMISSION_DENIED, with a fix; others:
// UNAVAILABLE, like ErrnoStatus().
absl::Status DirectoryError(absl::string_view doing, int error);

// Creates the directory at `path` and its parents.
absl::Status MakeDirectory(const std::string& path);

}  // namespace fsdpd
