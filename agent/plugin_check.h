// Whether a job's plug-in may be loaded on this node. A shared object runs its submitter's code as the
// agent's user, which is as much as an account there: so an agent loads none unless its owner named
// directories (--plugin-dir), and then what lies in one of them (path_roots.h). Whoever may write into these
// directories decides what runs.
#pragma once

#include <string>
#include <vector>

#include "agent/path_roots.h"

namespace fsdpd {

// Why not, in words; "" when it may.
std::string WhyNoPlugin(const std::string& path, const std::vector<PathRoot>& dirs);

}  // namespace fsdpd
