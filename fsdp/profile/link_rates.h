// Collective bandwidth and latency between ranks of one node, and the mutual slowdown of compute and
// communication.
//
// Rates are per rank as in DeviceProfile: bytes per second that one rank receives in an all-gather, or sends
// in a reduce-scatter, after subtracting the latency. The local sum of a 16-bit reduce-scatter is memory
// traffic and excluded from its rate, like in fsdp/plan/predict/cost.h.
//
// Results of collectives are verified before they are timed: INTERNAL if one is wrong.
#pragma once

#include <absl/status/statusor.h>

#include "fsdp/profile/compute_rates.h"
#include "fsdp/profile/rank_bench.h"

namespace fsdpd {

struct LinkSizes {
  int64_t large_elements = 0;  // Elements of each rank's part.
  int64_t small_elements = 0;
};

struct LinkRates {
  double gather_bytes_per_second = 0;
  double reduce_bytes_per_second = 0;
};

// REQUIRES: at least two ranks. Collective, like all functions here.
absl::StatusOr<double> MeasureLatency(RankBench* rank, const LinkSizes& sizes, DType wire);

absl::StatusOr<LinkRates> MeasureLinks(RankBench* rank, const LinkSizes& sizes, DType wire,
                                       double latency_seconds, double memory_bytes_per_second);

// Makes a repeatable all-gather over `group` whose buffer is already on the device. Verified. Collective over
// the group, which must outlive it.
absl::StatusOr<Work> MakeGather(RankBench* rank, Communicator* group, int64_t elements, DType wire);

// Slowdown factors (at least 1) of a product and an all-gather that run concurrently.
struct Slowdowns {
  double compute = 1;
  double communication = 1;
};
absl::StatusOr<Slowdowns> MeasureSlowdowns(RankBench* rank, const ComputeSizes& compute,
                                           const LinkSizes& links, DType dtype);

}  // namespace fsdpd
