// Which steps a running job traces when somebody asks: the next ones of which every rank hears in time. Pure.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>

#include "proto/fsdpd/v1/coordinator.pb.h"

namespace fsdpd {

// FAILED_PRECONDITION: the job makes no steps now, has made none yet, or ends before. INVALID_ARGUMENT:
// `steps` is not within 1..kMaxTracedSteps.
absl::StatusOr<v1::TraceJobResponse::Order> OrderTrace(const v1::Job& job, int64_t steps);

}  // namespace fsdpd
