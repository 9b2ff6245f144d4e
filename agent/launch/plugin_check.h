// Check whether the plug-in of a job may be loaded on this node. A shared object runs code of the submitter
// as the user of the agent, which amounts to an account on the node. So an agent loads none unless its owner
// set directories (--plugin-dir), and then only files below them (path_roots.h). Anyone with write access to
// these directories decides what runs.
#pragma once

#include <string>
#include <vector>

#include "agent/launch/path_roots.h"

namespace fsdpd {

// Returns the reason to refuse the plug-in; "" to accept it.
std::string PluginError(const std::string& path, const std::vector<PathRoot>& dirs);

}  // namespace fsdpd
