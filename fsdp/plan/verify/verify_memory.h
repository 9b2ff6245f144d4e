// Memory checks of the verifier (rules 2, 3 and 7): accesses, lifetimes and races. The accesses of an
// instruction are derived from its operation, so an undeclared use is detected. Covers the arena's buffers
// and the state outside it: main parameters, gradient shards, the results of Norm, and the loss.
#pragma once

#include "fsdp/plan/verify/verify_order.h"

namespace fsdpd {

// Checks that buffers exist as strategy and mesh require, are large enough, aligned, and within the arena and
// the budget. Needs no order; later checks rely on it.
absl::Status CheckBuffers(const VerifyCase& verified);

// REQUIRES: CheckBuffers passed, and instructions name existing units and buckets.
absl::Status CheckMemory(const VerifyCase& verified, const HappensBefore& order);

}  // namespace fsdpd
