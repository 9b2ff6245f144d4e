// Selection of the steps that a running job traces on request: the next steps for which the order reaches
// every rank in time. Pure.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>

#include "proto/fsdpd/v1/coordinator.pb.h"

namespace fsdpd {

// FAILED_PRECONDITION: the job is not training, has made no step yet, or ends too soon. INVALID_ARGUMENT:
// `steps` is not in 1..kMaxTracedSteps.
absl::StatusOr<v1::TraceJobResponse::Order> OrderTrace(const v1::Job& job, int64_t steps);

}  // namespace fsdpd
