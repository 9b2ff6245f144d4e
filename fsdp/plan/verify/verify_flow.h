// Data-flow checks of the verifier (rules 4, 5, 6, 8, 9, 11 and 12): the program computes the right values.
// Interprets two steps symbolically: a main parameter is the number of its updates, a gathered bucket the
// version that was gathered, a gradient the set of micro-batches and units that it sums. Strategies differ
// here only in when a Reduce is due; the checks look at the values that Norm and Update see.
#pragma once

#include "fsdp/plan/verify/verify_order.h"

namespace fsdpd {

// REQUIRES: CheckShape (verify_shape.h) and CheckMemory passed: without races, list order is a valid
// execution order.
absl::Status CheckFlow(const VerifyCase& verified, const HappensBefore& order);

}  // namespace fsdpd
