// Check whether the plug-in or package of a job may be loaded on this node. Its shared objects run code of
// the submitter as the user of the agent, which amounts to an account on the node. So an agent loads none
// unless its owner set directories (--plugin-dir), and then only files below them (path_roots.h). Anyone with
// write access to these directories decides what runs.
#pragma once

#include <absl/status/status.h>

#include <vector>

#include "agent/launch/path_roots.h"
#include "proto/fsdpd/v1/job.pb.h"

namespace fsdpd {

// Accepts models that are not loaded from a file. PERMISSION_DENIED outside of `dirs`, UNAVAILABLE if the
// file cannot be read.
absl::Status CheckPlugin(const v1::Model& model, const std::vector<PathRoot>& dirs);

}  // namespace fsdpd
