// In which order a rank's units run: one row for each forward and backward of a unit on a micro-batch. The
// compiler makes a program of any such table; ranks of different pipeline stages would have different ones.
#pragma once

#include <vector>

namespace fsdpd {

struct Pass {
  int unit = 0;
  int micro_batch = 0;
  bool forward = true;
};

using Schedule = std::vector<Pass>;

// Each micro-batch goes forward through the units and back, before the next one starts.
Schedule TrainingSchedule(int units, int micro_batches);

// One micro-batch forward.
Schedule EvaluationSchedule(int units);

}  // namespace fsdpd
