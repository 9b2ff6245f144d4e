// Samples of a step: train.global_batch, or its default where it is not set.
#pragma once

#include <cstdint>

#include "proto/fsdpd/v1/job.pb.h"

namespace fsdpd {

// Any spec; of one that rules refuse the result is meaningless.
int64_t GlobalBatchOf(const v1::JobSpec& job);

}  // namespace fsdpd
