// How fast ranks of one node exchange a bucket, and what computing and communicating cost each other.
//
// "Per rank" as DeviceProfile has it: bytes that one rank receives in a gather, or sends in a reduction, per
// second, beyond a latency that a collective has whatever its size. The sum that a narrow wire needs is
// memory traffic and left out of its rate, as fsdp/plan/predict/cost.h counts it.
//
// Results of collectives are verified before they are timed: INTERNAL when one is wrong.
#pragma once

#include <absl/status/statusor.h>

#include "fsdp/profile/compute_rates.h"
#include "fsdp/profile/rank_bench.h"

namespace fsdpd {

struct LinkSizes {
  int64_t large_elements = 0;  // Of each rank's part.
  int64_t small_elements = 0;
};

struct LinkRates {
  double gather_bytes_per_second = 0;
  double reduce_bytes_per_second = 0;
};

// REQUIRES: two ranks or more. Collective, as are the others.
absl::StatusOr<double> MeasureLatency(RankBench* rank, const LinkSizes& sizes, DType wire);

absl::StatusOr<LinkRates> MeasureLinks(RankBench* rank, const LinkSizes& sizes, DType wire,
                                       double latency_seconds, double memory_bytes_per_second);

// An all-gather over `group` that can be run again and again, its buffer already on the device. Verified.
// Collective over the group, which outlives it.
absl::StatusOr<Work> MakeGather(RankBench* rank, Communicator* group, int64_t elements, DType wire);

// Factors of at least 1, of a product and of an all-gather beside each other.
struct Slowdowns {
  double compute = 1;
  double communication = 1;
};
absl::StatusOr<Slowdowns> MeasureSlowdowns(RankBench* rank, const ComputeSizes& compute,
                                           const LinkSizes& links, DType dtype);

}  // namespace fsdpd
