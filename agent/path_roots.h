// Directories of this node that its owner named, and whether a path leads below one of them. A path lies
// there when it does as it is written, without "..", and the file that it leads to does too; what is not
// there yet lies where its nearest directory does. A link elsewhere that leads below one is refused, as it
// could lead away again between this look and the use; whoever may write below one may turn links there all
// the same, so that is for those who are trusted with it.
//
// A path that does not lie there as it is written is never looked at: it may hang on a dead mount.
#pragma once

#include <absl/status/statusor.h>

#include <string>
#include <vector>

namespace fsdpd {

struct PathRoot {
  std::string given;     // As its owner named it, absolute; equal to `resolved` where that holds a "..".
  std::string resolved;  // Without links.
};

// INVALID_ARGUMENT when it is no directory.
absl::StatusOr<PathRoot> ResolvePathRoot(const std::string& dir);

// As their owner named them, for people.
std::string NamesOf(const std::vector<PathRoot>& roots);

// UNAVAILABLE when it cannot be known where the path leads.
absl::StatusOr<bool> LiesBelow(const std::string& path, const std::vector<PathRoot>& roots);

}  // namespace fsdpd
