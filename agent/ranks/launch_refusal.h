// Decision whether this node accepts a launch, with the kind of failure to report: checks the rank binary and
// the paths of the job on this node, in addition to launch_check.h.
//
// Thread-safe; they read the file system.
#pragma once

#include <string>
#include <vector>

#include "agent/launch/launch_check.h"
#include "agent/launch/path_roots.h"
#include "proto/fsdpd/v1/agent.pb.h"

namespace fsdpd {

struct LaunchRefusal {
  std::string reason;  // "": the launch is accepted.
  v1::ErrorClass::Kind fault = v1::ErrorClass::KIND_UNSPECIFIED;
  // The launch was accepted and failed before its ranks ran, so its attempt number is not stale.
  bool started = false;
  bool node_only = false;  // Another node may accept the launch.
};

// The fault that the exits of the refused launch carry.
v1::ErrorClass CauseOf(const LaunchRefusal& refusal);

// `plugin_dirs`: directories of allowed plug-ins. `path_roots`: directories that must contain all other paths
// of the job; empty: no restriction.
LaunchRefusal RefusalOf(const v1::Launch& launch, const NodeUse& use, const std::string& rank_binary,
                        const std::vector<PathRoot>& plugin_dirs, const std::vector<PathRoot>& path_roots);

}  // namespace fsdpd
