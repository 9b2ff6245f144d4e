// Check whether ranks may open the paths in a spec on this node. Ranks run as the user of the agent, so a
// spec can name whatever that user can access, unless the owner of the agent set directories (--path-root):
// then all paths must be below them (path_roots.h).
//
// Plug-ins and packages run code of the submitter as the user of the agent, which amounts to an account on
// the node. So an agent loads none unless its owner set directories for them (--plugin-dir), and then only
// files below them. Anyone with write access to these directories decides what runs.
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

// The same for the plug-in or package of a job, if it has one. Without `dirs`, none is allowed. UNAVAILABLE
// also if it cannot be read.
absl::Status CheckPlugin(const v1::Model& model, const std::vector<PathRoot>& dirs);

}  // namespace fsdpd
