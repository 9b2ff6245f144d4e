// Check whether ranks may open the paths in a spec on this node. Ranks run as the user of the agent, so a
// spec can name whatever that user can access, unless the owner of the agent set directories (--path-root):
// then all paths must be below them (path_roots.h). Plug-ins have directories of their own (plugin_check.h).
//
// Accesses the file system and blocks as long as that takes.
#pragma once

#include <absl/status/status.h>

#include <string>
#include <vector>

#include "agent/launch/path_roots.h"
#include "proto/fsdpd/v1/job.pb.h"

namespace fsdpd {

struct SpecPath {
  std::string field;  // "data.tokens[0].path"
  std::string path;   // File or directory that is opened.
};

// All paths that ranks open or create; without fields that the spec leaves out.
std::vector<SpecPath> PathsOf(const v1::JobSpec& spec);

// Without roots, all paths are allowed. PERMISSION_DENIED if one is not, UNAVAILABLE if one cannot be
// resolved.
absl::Status CheckPaths(const v1::JobSpec& spec, const std::vector<PathRoot>& roots);

}  // namespace fsdpd
