// Where an attempt's files are: the nodes to ask for what its ranks wrote. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/node_registry.h"
#include "proto/fsdpd/v1/coordinator.pb.h"

namespace fsdpd {

// `rank`: -1 for all. Of an older attempt: nodes that are ready and hosted it or a later one
// (Job.earlier_hosts), or any that is ready, if the record does not have all hosts.
std::vector<std::string> NodesOf(const v1::Job& job, int32_t attempt, int32_t rank,
                                 const std::vector<NodeView>& all);

// Of that attempt; empty for an older one, whose ranks may have been elsewhere.
std::vector<v1::Job::Placement> PlacementsOf(const v1::Job& job, int32_t attempt);

// Nodes to ask for steps: those where rank 0 was, of an attempt or (none) of all. Where that is no longer
// known, any host of it may have them, also one that is away.
std::vector<std::string> NodesWithSteps(const v1::Job& job, std::optional<int32_t> attempt,
                                        const std::vector<NodeView>& all);

// Whether rank 0 of the attempt may have been there: steps of it from any other node are forged.
bool MayHaveSteps(const v1::Job& job, int32_t attempt, const std::string& node);

// Nodes that are not connected and may have files of an older attempt: the one that it ran on or where it
// failed, as long as that is known, or all that are away. None where all of it ran on one that is connected.
std::vector<std::string> NodesAwayOf(const v1::Job& job, int32_t attempt, const std::vector<NodeView>& all);

// Its ranks write no more.
bool AttemptIsOver(const v1::Job& job, int32_t attempt);

}  // namespace fsdpd
