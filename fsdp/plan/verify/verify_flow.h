// Rules 4, 5, 6, 8, 9, 11 and 12: the program computes what it should. Runs its list twice on stand-ins for
// the values: a main parameter is the number of updates it has seen, a gathered bucket the version it was
// gathered at, a gradient the micro-batches and units that it sums. Strategies need no cases of their own
// here but for how often a Reduce is due: what counts is what Norm and Update find.
#pragma once

#include "fsdp/plan/verify/verify_order.h"

namespace fsdpd {

// REQUIRES: CheckShape (verify_shape.h), and CheckMemory: without races, the list's order is the order of
// execution.
absl::Status CheckFlow(const VerifyCase& verified, const StepOrder& order);

}  // namespace fsdpd
