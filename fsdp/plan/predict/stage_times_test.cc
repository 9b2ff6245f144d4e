#include "fsdp/plan/predict/stage_times.h"

#include <gtest/gtest.h>

#include <numeric>

#include "fsdp/plan/model/stage_partition.h"
#include "fsdp/plan/program/testing/program_cases.h"

namespace fsdpd {
namespace {

struct Timed {
  std::vector<Program> programs;
  std::vector<TimedStage> stages;
};

// Each stage takes one second forward and two backward per micro-batch, in runs of two units; nothing else
// takes time.
Timed Equal(int stages, int micro_batches, int runs = 1, bool zero_bubble = false) {
  Spec spec = PresetSpec("tiny", stages, 1);
  std::get<LlamaConfig>(spec.model).layers = 2 * stages * runs - 2;
  spec.mesh = spec.mesh.WithPipeline(stages);
  spec.global_batch = micro_batches;
  spec.strategy = Strategy::kOptim;
  spec.stage_units.assign(stages * runs, 2);
  spec.zero_bubble = zero_bubble;
  Timed timed;
  timed.programs.reserve(stages);
  for (const ModelFacts& model : StagesOf(spec)) {
    timed.programs.push_back(CompileProgram(spec, model, MakeLayout(model, LayoutOptionsOf(spec))));
    TimedStage& stage = timed.stages.emplace_back();
    stage.program = &timed.programs.back();
    stage.stage = model.stage;
    for (const Instruction& i : stage.program->instructions) {
      const bool both = i.op == Op::kForwardBackward;
      const double back = both || i.op == Op::kBackward ? 1 : i.op == Op::kBackwardWeights ? 0.5 : 0;
      stage.seconds.push_back(((both || i.op == Op::kForward ? 0.5 : 0) + back - (i.defers_grads ? 0.5 : 0)) /
                              runs);
    }
  }
  return timed;
}

// Bubble of 1F1B per step: the time of one micro-batch in all other stages.
TEST(StageTimes, BubbleOf1F1BIsOneMicroBatchOfOtherStages) {
  for (const int stages : {2, 3, 5}) {
    for (const int micro_batches : {1, 2, 4, 8}) {
      const Timed timed = Equal(stages, micro_batches);
      const StageBusy busy = BusyOf(timed.stages, RunStages(timed.stages, 3));
      EXPECT_NEAR(busy.step_seconds, 3.0 * (micro_batches + stages - 1), 1e-9)
          << stages << " stages, " << micro_batches << " micro-batches";
      for (const double seconds : busy.compute_seconds) EXPECT_NEAR(seconds, 3.0 * micro_batches, 1e-9);
    }
  }
}

TEST(StageTimes, InterleavingDividesBubble) {
  for (const int stages : {2, 3, 4}) {
    for (const int runs : {2, 4}) {
      for (const int micro_batches : {stages, 3 * stages}) {
        const Timed timed = Equal(stages, micro_batches, runs);
        const StageBusy busy = BusyOf(timed.stages, RunStages(timed.stages, 3));
        EXPECT_NEAR(busy.step_seconds, 3.0 * micro_batches + 3.0 * (stages - 1) / runs, 1e-9)
            << stages << " stages of " << runs << " runs, " << micro_batches << " micro-batches";
      }
    }
  }
}

// Zero-bubble leaves a third of the 1F1B bubble if forward, input gradient and weight gradient take equal
// time; slightly more, because the head defers nothing.
TEST(StageTimes, DeferredGradientsFillBubble) {
  for (const int stages : {2, 3, 4}) {
    const int micro_batches = 3 * stages;
    const Timed plain = Equal(stages, micro_batches), timed = Equal(stages, micro_batches, 1, true);
    const StageBusy busy = BusyOf(timed.stages, RunStages(timed.stages, 3));
    const double bubble = 3.0 * (stages - 1);
    EXPECT_NEAR(BusyOf(plain.stages, RunStages(plain.stages, 3)).step_seconds, 3.0 * micro_batches + bubble,
                1e-9);
    EXPECT_GE(busy.step_seconds, 3.0 * micro_batches + bubble / 3 - 1e-9);
    EXPECT_LE(busy.step_seconds, 3.0 * micro_batches + bubble / 2 + 0.5) << stages << " stages";
    for (const double seconds : busy.compute_seconds) EXPECT_NEAR(seconds, 3.0 * micro_batches, 1e-9);
  }
}

TEST(StageTimes, TransfersDelayPipeline) {
  Timed timed = Equal(2, 1);
  for (TimedStage& stage : timed.stages) {
    for (size_t i = 0; i < stage.seconds.size(); ++i) {
      if (StageTransferOf(stage.program->instructions[i].op) != StageTransfer::kNone) stage.seconds[i] = 0.25;
    }
  }
  EXPECT_NEAR(BusyOf(timed.stages, RunStages(timed.stages, 3)).step_seconds, 3.0 * 2 + 2 * 0.25, 1e-9);
}

TEST(StageTimes, PiecesSumToRunTimes) {
  const Timed timed = Equal(3, 4);
  const std::vector<LaneTimes> times = RunStages(timed.stages, 2);
  for (size_t s = 0; s < times.size(); ++s) {
    double pieces = 0, all = 0;
    for (const LaneTimes::Piece& piece : times[s].pieces) {
      if (piece.running[static_cast<size_t>(LaneId::kCompute)] >= 0)
        pieces += piece.time.end - piece.time.start;
    }
    for (const double seconds : timed.stages[s].seconds) all += 2 * seconds;
    EXPECT_NEAR(pieces, all, 1e-9);
  }
}

}  // namespace
}  // namespace fsdpd
