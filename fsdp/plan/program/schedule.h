// In which order a rank's units run: one row for each Forward, Backward or ForwardBackward of a unit on a
// micro-batch. The compiler makes a program of any such table; ranks of different pipeline stages would have
// different ones.
#pragma once

#include <vector>

#include "fsdp/plan/program/operation.h"

namespace fsdpd {

struct Pass {
  int unit = 0;
  int micro_batch = 0;
  Op op = Op::kForward;
};

using Schedule = std::vector<Pass>;

// Each micro-batch goes forward through the units and back, before the next one starts. The last unit does
// both at once.
Schedule TrainingSchedule(int units, int micro_batches);

// One micro-batch forward.
Schedule EvaluationSchedule(int units);

}  // namespace fsdpd
