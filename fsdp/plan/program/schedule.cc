#include "fsdp/plan/program/schedule.h"

namespace fsdpd {

Schedule TrainingSchedule(int units, int micro_batches, const StagePlace& stage) {
  Schedule passes;
  // Units that go forward by themselves: but for the last one of all.
  const int apart = stage.last() ? units - 1 : units;
  const auto forward = [&](int m) {
    for (int u = 0; u < apart; ++u) passes.push_back({u, m, Op::kForward});
  };
  const auto backward = [&](int m) {
    if (stage.last()) passes.push_back({units - 1, m, Op::kForwardBackward});
    for (int u = apart - 1; u >= 0; --u) passes.push_back({u, m, Op::kBackward});
  };
  const int ahead = stage.InFlight(micro_batches) - 1;
  for (int m = 0; m < ahead; ++m) forward(m);
  for (int m = 0; m < micro_batches; ++m) {
    if (m + ahead < micro_batches) forward(m + ahead);
    backward(m);
  }
  return passes;
}

Schedule EvaluationSchedule(int units) {
  Schedule passes;
  for (int u = 0; u < units; ++u) passes.push_back({u, 0, Op::kForward});
  return passes;
}

}  // namespace fsdpd
