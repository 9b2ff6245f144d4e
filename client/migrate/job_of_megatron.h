// The job spec that does what a Megatron run does: model, data, batch sizes, optimizer, schedule, precision,
// sharding, parallel sizes and checkpoints. Defaults that differ between the two are written out, so that the
// spec says what ran.
//
// A setting that would change the model or the training and has no place in a spec is an error, or an
// adjustment with both values; those without effect on the result are in one warning that names them all, and
// those that are not known here (megatron_options.h) in another.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "client/migrate/settings.h"
#include "proto/fsdpd/v1/job.pb.h"

namespace fsdpd {

struct Cluster {  // Empty: what torchrun's --nnodes and --nproc-per-node say, or 1 and 8.
  std::optional<int64_t> nodes = {};
  std::optional<int64_t> ranks_per_node = {};
};

// Call after CheckMegatron, which adjusts. `file` is where faults are that belong to no setting.
SpecFaults JobOfMegatron(Settings* settings, const Cluster& cluster, const std::string& file,
                         v1::JobSpec* job);

}  // namespace fsdpd
