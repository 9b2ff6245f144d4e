// Whether a job's plug-in may be loaded on this node. A shared object runs its submitter's code as the
// agent's user, which is as much as an account there: so an agent loads none unless its owner named folders
// (--plugin-dir), and then only what lies in one of them, wherever a path or a link leads. Who may write into
// these folders decides what runs; between this look and the rank's own it may change there, not outside.
#pragma once

#include <absl/status/statusor.h>

#include <string>
#include <vector>

namespace fsdpd {

// The folder as it is compared with, absolute and without links. INVALID_ARGUMENT when it is none.
absl::StatusOr<std::string> ResolvePluginDir(const std::string& dir);

// Why not, in words; "" when it may. `dirs`: as ResolvePluginDir() gave them.
std::string WhyNoPlugin(const std::string& path, const std::vector<std::string>& dirs);

}  // namespace fsdpd
