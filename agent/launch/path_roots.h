// Directories of this node that its owner allowed, and whether a path is below one of them. A path is below a
// root if both its text, without "..", and the file that it resolves to are. A path that does not exist yet
// is judged by its nearest existing parent. A symlink outside of the roots that points into one is rejected:
// it could be changed between this check and the use. Anyone with write access below a root can still change
// symlinks there, so grant it to trusted users only.
//
// A path whose text is outside of all roots is not accessed at all: it may hang on a dead mount.
#pragma once

#include <absl/status/statusor.h>

#include <string>
#include <vector>

namespace fsdpd {

struct PathRoot {
  std::string given;     // As the owner wrote it, absolute; equal to `resolved` if it contains "..".
  std::string resolved;  // Without symlinks.
};

// INVALID_ARGUMENT if `dir` is not a directory.
absl::StatusOr<PathRoot> ResolvePathRoot(const std::string& dir);

// Comma-separated `given` paths, for messages.
std::string NamesOf(const std::vector<PathRoot>& roots);

// UNAVAILABLE if the path cannot be resolved.
absl::StatusOr<bool> LiesBelow(const std::string& path, const std::vector<PathRoot>& roots);

}  // namespace fsdpd
