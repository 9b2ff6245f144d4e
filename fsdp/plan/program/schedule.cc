#include "fsdp/plan/program/schedule.h"

namespace fsdpd {

Schedule TrainingSchedule(int units, int micro_batches) {
  Schedule passes;
  for (int m = 0; m < micro_batches; ++m) {
    for (int u = 0; u < units; ++u) passes.push_back({u, m, true});
    for (int u = units - 1; u >= 0; --u) passes.push_back({u, m, false});
  }
  return passes;
}

Schedule EvaluationSchedule(int units) {
  Schedule passes;
  for (int u = 0; u < units; ++u) passes.push_back({u, 0, true});
  return passes;
}

}  // namespace fsdpd
