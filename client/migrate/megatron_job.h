// Conversion of a Megatron run into an equivalent job spec: model, data, batch sizes, optimizer, schedule,
// precision, sharding, parallel degrees and checkpoints. Megatron's defaults are written out where fsdpd's
// differ.
//
// A setting that changes the model or the training and has no field in a spec is an error, or an adjustment
// with both values. One warning lists the settings without effect on the result, another the unknown settings
// (megatron_options.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "client/migrate/settings.h"
#include "proto/fsdpd/v1/job.pb.h"

namespace fsdpd {

// Size of the cluster from migrate's command line. Unset: torchrun's --nnodes and --nproc-per-node, or 1 and
// 8.
struct Cluster {
  std::optional<int64_t> nodes = {};
  std::optional<int64_t> ranks_per_node = {};
};

// REQUIRES: CheckMegatron(settings) ran, because its adjustments change settings that this function reads.
// `file` is the place of violations without a setting. Returns all violations; `*job` is complete only if
// none is an error.
LocatedViolations ConvertMegatronJob(Settings* settings, const Cluster& cluster, const std::string& file,
                                     v1::JobSpec* job);

}  // namespace fsdpd
