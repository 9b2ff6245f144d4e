// World sizes that an elastic job (Restart.elastic) can continue with when not all of its ranks are
// available, and its spec at each. The global batch stays fixed, so fewer ranks run more micro-batches. The
// axes of `parallel` stay; nodes, ranks per node, and replicas shrink, replicas before the shards within one.
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

// World sizes of at least min_ranks that divide the batch and the axes: most ranks first, then fewest nodes.
// Other rules may still reject one. REQUIRES: the rules of resources, parallel and train hold.
std::vector<World> SmallerWorlds(const v1::JobSpec& job);

// The job at that world size, no longer elastic. A field that is `auto` in `job` stays `auto`.
v1::JobSpec InWorld(const v1::JobSpec& job, const World& world);

}  // namespace fsdpd
