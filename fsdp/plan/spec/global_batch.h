// Samples of a step: train.global_batch, or its default where it is not set.
#pragma once

#include <cstdint>

#include "proto/fsdpd/v1/job.pb.h"

namespace fsdpd {

// Accepts any spec. For a spec that the rules refuse the result is meaningless; products are saturated to
// int64.
int64_t GlobalBatchOf(const v1::JobSpec& job);

}  // namespace fsdpd
