// Locations of an attempt's files: the nodes to query for the output of its ranks. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/nodes/node_registry.h"
#include "proto/fsdpd/v1/coordinator.pb.h"

namespace fsdpd {

// Nodes to query for logs. `rank`: -1 for all. For an older attempt: ready nodes that hosted it or a later
// one (Job.earlier_hosts), or all ready nodes if the record does not have all hosts.
std::vector<std::string> NodesOf(const v1::Job& job, int32_t attempt, int32_t rank,
                                 const std::vector<NodeView>& all);

// Placements of `attempt`; empty for an older attempt, whose ranks may have been on other nodes.
std::vector<v1::Job::Placement> PlacementsOf(const v1::Job& job, int32_t attempt);

// Nodes to query for steps: those that hosted rank 0 of `attempt`, or of all attempts if nullopt. If rank 0's
// node is unknown, any host of the attempt may have them, including disconnected nodes.
std::vector<std::string> NodesWithSteps(const v1::Job& job, std::optional<int32_t> attempt,
                                        const std::vector<NodeView>& all);

// Whether rank 0 of the attempt may have run on `node`; steps from any other node are forged.
bool MayHaveSteps(const v1::Job& job, int32_t attempt, const std::string& node);

// Disconnected nodes that may have files of an older attempt: the node that it ran on or where it failed, if
// known, else all disconnected nodes. Empty if the whole attempt ran on one connected node.
std::vector<std::string> DisconnectedNodesOf(const v1::Job& job, int32_t attempt,
                                             const std::vector<NodeView>& all);

// Its ranks no longer write.
bool AttemptIsOver(const v1::Job& job, int32_t attempt);

}  // namespace fsdpd
