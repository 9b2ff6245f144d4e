// With how many ranks a job can go on that cannot have all of them (Restart.elastic), and what its spec is
// then. The samples of a step stay the same, so fewer ranks take more micro-batches; the axes of `parallel`
// stay, and what shrinks are nodes, ranks of each, and replicas before what a replica shards.
//
// Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "proto/fsdpd/v1/job.pb.h"

namespace fsdpd {

struct World {
  int64_t nodes = 1;
  int64_t ranks_per_node = 1;

  int64_t ranks() const { return nodes * ranks_per_node; }
};

// Those of min_ranks or more whose ranks the batch and the axes divide over: the most ranks first, of as many
// those on the fewest nodes. Other rules may refuse one still. REQUIRES: the rules of resources, parallel and
// train hold.
std::vector<World> SmallerWorlds(const v1::JobSpec& job);

// The job in that world, where it is not elastic any more. What is open in `job` (auto) is open here.
v1::JobSpec InWorld(const v1::JobSpec& job, const World& world);

}  // namespace fsdpd
