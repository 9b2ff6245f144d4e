#include "fsdp/plan/program/schedule.h"

namespace fsdpd {

Schedule TrainingSchedule(int units, int micro_batches) {
  Schedule passes;
  const int last = units - 1;
  for (int m = 0; m < micro_batches; ++m) {
    for (int u = 0; u < last; ++u) passes.push_back({u, m, Op::kForward});
    passes.push_back({last, m, Op::kForwardBackward});
    for (int u = last - 1; u >= 0; --u) passes.push_back({u, m, Op::kBackward});
  }
  return passes;
}

Schedule EvaluationSchedule(int units) {
  Schedule passes;
  for (int u = 0; u < units; ++u) passes.push_back({u, 0, Op::kForward});
  return passes;
}

}  // namespace fsdpd
