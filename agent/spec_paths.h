// Whether a job's ranks may open what its spec names on this node. They run as the agent's user, so a spec's
// paths reach what that user does, unless the agent's owner named directories (--path-root): then all of them
// lie below these (path_roots.h). A plug-in's has directories of its own (plugin_check.h).
//
// Looks at the disk, for as long as that takes.
#pragma once

#include <absl/status/status.h>

#include <string>
#include <vector>

#include "agent/path_roots.h"
#include "proto/fsdpd/v1/job.pb.h"

namespace fsdpd {

struct SpecPath {
  std::string field;  // "data.tokens[0].path"
  std::string path;   // Of the file or directory that is opened.
};

// All that ranks open or make; those that the spec leaves out are not among them.
std::vector<SpecPath> PathsOf(const v1::JobSpec& spec);

// Without roots all may be opened. PERMISSION_DENIED when one may not; UNAVAILABLE when it cannot be known.
absl::Status CheckPaths(const v1::JobSpec& spec, const std::vector<PathRoot>& roots);

}  // namespace fsdpd
