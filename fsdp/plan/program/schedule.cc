#include "fsdp/plan/program/schedule.h"

#include "base/check.h"

namespace fsdpd {
namespace {

// The n-th forward of a stage, or, `back`, the n-th backward.
Turn TurnAt(int n, bool back, const StagePlace& stage) {
  const auto runs = static_cast<int>(stage.runs.size());
  const int within = n % (runs * stage.count), run = within / stage.count;
  const int micro_batch = n / (runs * stage.count) * stage.count + n % stage.count;
  return {back ? runs - 1 - run : run, micro_batch, !back};
}

}  // namespace

std::vector<Turn> TrainingTurns(int micro_batches, const StagePlace& stage) {
  const int count = micro_batches * static_cast<int>(stage.runs.size());
  FSDPD_CHECK(stage.runs.size() == 1 || micro_batches % stage.count == 0);
  const int ahead = stage.InFlight(micro_batches) - 1;
  std::vector<Turn> turns;
  for (int n = 0; n < ahead; ++n) turns.push_back(TurnAt(n, false, stage));
  for (int n = 0; n < count; ++n) {
    if (n + ahead < count) turns.push_back(TurnAt(n + ahead, false, stage));
    turns.push_back(TurnAt(n, true, stage));
  }
  return turns;
}

Schedule TrainingSchedule(int units, int micro_batches, const StagePlace& stage) {
  Schedule passes;
  for (const Turn& turn : TrainingTurns(micro_batches, stage)) {
    const UnitRun& run = stage.runs[turn.run];
    const int end = stage.count > 1 ? run.end : units;
    const bool fuses = stage.last() && end == units;
    const int apart = fuses ? end - 1 : end;  // Units that go forward by themselves.
    for (int u = run.begin; turn.forward && u < apart; ++u)
      passes.push_back({u, turn.micro_batch, Op::kForward});
    if (turn.forward) continue;
    if (fuses) passes.push_back({end - 1, turn.micro_batch, Op::kForwardBackward});
    for (int u = apart - 1; u >= run.begin; --u) passes.push_back({u, turn.micro_batch, Op::kBackward});
  }
  return passes;
}

Schedule EvaluationSchedule(int units) {
  Schedule passes;
  for (int u = 0; u < units; ++u) passes.push_back({u, 0, Op::kForward});
  return passes;
}

}  // namespace fsdpd
