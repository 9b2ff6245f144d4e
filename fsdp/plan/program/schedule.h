// In which order a rank's units run: one row for each Forward, Backward or ForwardBackward of a unit on a
// micro-batch. The compiler makes a program of any such table; ranks of different pipeline stages have
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

// Of the stage's units. Where there is one stage, each micro-batch goes forward through the units and back,
// before the next one starts; the last unit does both at once. Of more stages, 1F1B: each begins with a
// forward for every stage behind it, and goes on with a forward and the backward of the oldest that is left.
Schedule TrainingSchedule(int units, int micro_batches, const StagePlace& stage = {});

// One micro-batch forward.
Schedule EvaluationSchedule(int units);

}  // namespace fsdpd
