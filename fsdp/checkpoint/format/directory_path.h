// Directories named by users: paths, creation and errors. Errors of the path itself (a file is in its way, no
// write permission) get other codes than those of a failing disk or server, which may recover.
//
// Thread-safe.
#pragma once

#include <absl/status/status.h>
#include <absl/strings/string_view.h>

#include <string>

namespace fsdpd {

// "/runs/7" for "/runs/7/", so that names can be appended and paths compared. "/" is unchanged.
std::string WithoutSlash(absl::string_view path);

// The last component: "iter_0000200".
std::string DirectoryName(absl::string_view path);

// `doing`: "make /runs/7". Path errors: NOT_FOUND, INVALID_ARGUMENT or PERMISSION_DENIED, with a fix; others:
// UNAVAILABLE, like ErrnoStatus().
absl::Status DirectoryError(absl::string_view doing, int error);

// Creates the directory at `path` and its parents.
absl::Status MakeDirectory(const std::string& path);

}  // namespace fsdpd
