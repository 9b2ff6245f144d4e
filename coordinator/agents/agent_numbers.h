// Bounds on the numbers in agent messages: within them, counting, summing and displaying cannot overflow.
// Bounds follow from the name of a field, so that a new field has bounds from the start: it is a count (from
// 0) unless its name identifies a step, a rank, a time, or one of the values without bounds.
//
// Pure.
#pragma once

#include <absl/status/status.h>

#include "proto/fsdpd/v1/agent.pb.h"

namespace fsdpd {

// INVALID_ARGUMENT with the first field that is out of bounds, and its value.
absl::Status CheckNumbers(const v1::AgentMessage& message);

}  // namespace fsdpd
