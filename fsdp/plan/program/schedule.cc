#include "fsdp/plan/program/schedule.h"

#include <algorithm>

#include "base/check.h"

namespace fsdpd {
namespace {

// The n-th forward turn of a stage, or with `back` the n-th backward turn. With R runs and S stages, turns
// come in blocks of R * S: S micro-batches through run 0, the same S through run 1, and so on; backward
// visits the runs in reverse order.
Turn TurnAt(int n, bool back, const StagePlace& stage) {
  const auto runs = static_cast<int>(stage.runs.size());
  const int within = n % (runs * stage.count), run = within / stage.count;
  const int micro_batch = n / (runs * stage.count) * stage.count + n % stage.count;
  return {back ? runs - 1 - run : run, micro_batch, back ? Leg::kBackward : Leg::kForward};
}

}  // namespace

std::vector<Turn> TrainingTurns(int micro_batches, const StagePlace& stage) {
  const int count = micro_batches * static_cast<int>(stage.runs.size());
  FSDPD_CHECK(stage.runs.size() == 1 || (micro_batches % stage.count == 0 && !stage.defers_grads));
  // 1F1B: `ahead` warmup forwards, then alternating forward and backward, then the remaining backwards. With
  // zero-bubble, weight gradients lag DeferredPasses() micro-batches behind their backward.
  const int ahead = stage.InFlight(micro_batches) - 1;
  std::vector<Turn> turns;
  for (int n = 0; n < ahead; ++n) turns.push_back(TurnAt(n, false, stage));
  for (int n = 0; n < count; ++n) {
    if (n + ahead < count) turns.push_back(TurnAt(n + ahead, false, stage));
    turns.push_back(TurnAt(n, true, stage));
    if (stage.defers_grads && n >= stage.DeferredPasses())
      turns.push_back({0, n - stage.DeferredPasses(), Leg::kWeights});
  }
  for (int n = std::max(0, count - stage.DeferredPasses()); n < count; ++n)
    turns.push_back({0, n, Leg::kWeights});
  return turns;
}

Schedule TrainingSchedule(int units, int micro_batches, const StagePlace& stage) {
  Schedule passes;
  for (const Turn& turn : TrainingTurns(micro_batches, stage)) {
    const UnitRun& run = stage.runs[turn.run];
    const int end = stage.count > 1 ? run.end : units;
    const bool fuses = stage.last() && end == units;
    const int apart = fuses ? end - 1 : end;  // End of the units with a separate Forward.
    if (turn.leg == Leg::kForward) {
      for (int u = run.begin; u < apart; ++u) passes.push_back({u, turn.micro_batch, Op::kForward});
      continue;
    }
    const bool back = turn.leg == Leg::kBackward;
    if (back && fuses) passes.push_back({end - 1, turn.micro_batch, Op::kForwardBackward});
    for (int u = apart - 1; u >= run.begin; --u)
      passes.push_back({u, turn.micro_batch, back ? Op::kBackward : Op::kBackwardWeights});
  }
  return passes;
}

Schedule EvaluationSchedule(int units) {
  Schedule passes;
  for (int u = 0; u < units; ++u) passes.push_back({u, 0, Op::kForward});
  return passes;
}

}  // namespace fsdpd
