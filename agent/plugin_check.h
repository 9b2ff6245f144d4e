// Whether a job's plug-in may be loaded on this node. A shared object runs its submitter's code as the
// agent's user, which is as much as an account there: so an agent loads none unless its owner named folders
// (--plugin-dir). The path must lie in one of them as it is written, without "..", and so must the file that it
// leads to. Whoever may write into these folders decides what runs; a link elsewhere that leads into one is
// refused, as it could lead away again between this look and the rank's own.
//
// A path that does not lie there as it is written is never looked at: it may hang on a dead mount.
#pragma once

#include <absl/status/statusor.h>

#include <string>
#include <vector>

namespace fsdpd {

struct PluginDir {
  std::string given;     // As its owner named it, absolute; equal to `resolved` where that holds a "..".
  std::string resolved;  // Without links.
};

// INVALID_ARGUMENT when it is no folder.
absl::StatusOr<PluginDir> ResolvePluginDir(const std::string& dir);

// Why not, in words; "" when it may.
std::string WhyNoPlugin(const std::string& path, const std::vector<PluginDir>& dirs);

}  // namespace fsdpd
