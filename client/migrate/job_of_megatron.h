// The job spec that does what a Megatron run does: model, data, batch sizes, optimizer, schedule, precision,
// sharding, parallel sizes and checkpoints. Defaults that differ between the two are written out, so that the
// spec says what ran.
//
// A setting that would change the model or the training and has no place in a spec is an error; one that only
// says how Megatron did it is in one warning that names them all.
#pragma once

#include "client/migrate/settings.h"
#include "proto/fsdpd/v1/job.pb.h"

namespace fsdpd {

struct Cluster {  // Not among the settings: torchrun's business there.
  int64_t nodes = 1;
  int64_t ranks_per_node = 8;
};

// Call after CheckMegatron, which adjusts. `file` is where faults are that belong to no setting.
SpecFaults JobOfMegatron(Settings* settings, const Cluster& cluster, const std::string& file,
                         v1::JobSpec* job);

}  // namespace fsdpd
