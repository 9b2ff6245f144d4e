// Parts of Verify() (verify.h), in the order in which they run. Each relies on the previous ones.
#pragma once

#include "fsdp/plan/verify/verify_order.h"

namespace fsdpd {

// Operands exist and match, and each instruction has the lane, group and communicator of its operation.
absl::Status CheckShape(const VerifyCase& verified);

// Buffers exist as strategy and mesh require, are large enough, aligned, and within the arena and the budget.
absl::Status CheckBuffers(const VerifyCase& verified);

// Accesses, lifetimes and races (rules 2, 3 and 7). The accesses of an instruction are derived from its
// operation, so an undeclared use is detected. Covers the arena's buffers and the state outside it: main
// parameters, gradient shards, the results of Norm, and the loss.
absl::Status CheckMemory(const VerifyCase& verified, const HappensBefore& order);

// Data flow (rules 4, 5, 6, 8, 9, 11 and 12): the program computes the right values. Without races, list
// order is a valid execution order. Interprets two steps symbolically: a main parameter is the number of its
// updates, a gathered bucket the version that was gathered, a gradient the set of micro-batches and units
// that it sums. Strategies differ here only in when a Reduce is due; the checks look at the values that Norm
// and Update see.
absl::Status CheckFlow(const VerifyCase& verified, const HappensBefore& order);

}  // namespace fsdpd
