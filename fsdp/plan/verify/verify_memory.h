// Rules 2, 3 and 7: who touches which bytes when. What an instruction touches follows from its operation, so
// a program that forgets to declare a use is caught by what it does. Beside the arena's buffers there is
// state outside of it, which is checked alike: main parameters, gradient shards, the norm's results and the
// loss.
#pragma once

#include "fsdp/plan/verify/verify_order.h"

namespace fsdpd {

// Buffers that exist as strategy and mesh ask, are large enough, aligned, within the arena and the budget.
// Needs no order: what comes after may rely on it.
absl::Status CheckBuffers(const VerifyCase& verified);

// REQUIRES: CheckBuffers, and instructions that name existing units and buckets.
absl::Status CheckMemory(const VerifyCase& verified, const StepOrder& order);

}  // namespace fsdpd
