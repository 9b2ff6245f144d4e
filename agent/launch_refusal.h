// Why this node does not take a launch, with what the reason is the fault of: the node's rank binary and
// directories, on top of what launch_check.h decides from the launch.
//
// Thread safety: all functions; they read the file system.
#pragma once

#include <string>
#include <vector>

#include "agent/launch_check.h"
#include "agent/path_roots.h"
#include "proto/fsdpd/v1/agent.pb.h"

namespace fsdpd {

struct LaunchRefusal {
  std::string why;  // "": the node takes it.
  v1::RankFault::Kind fault = v1::RankFault::KIND_UNSPECIFIED;
  bool begun = false;  // It was taken, and failed before its ranks ran: its number is not an older one.
};

// What the exits of a launch that is refused by a known fault say of it.
v1::RankFault FaultOf(const LaunchRefusal& refusal);

// `plugin_dirs`: from which plug-ins are loaded. `path_roots`: below which a job's other paths lie, if any.
LaunchRefusal RefusalOf(const v1::Launch& launch, const NodeUse& use, const std::string& rank_binary,
                        const std::vector<PathRoot>& plugin_dirs, const std::vector<PathRoot>& path_roots);

}  // namespace fsdpd
