#include "fsdp/plan/program/program.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "fsdp/plan/model/activation_policy.h"
#include "fsdp/plan/program/fingerprint.h"
#include "fsdp/plan/program/testing/program_cases.h"

namespace fsdpd {
namespace {

using Lines = std::vector<std::string>;

void TwoMicroBatches(Spec* spec) { spec->global_batch *= 2; }

void PrefetchOneUnit(Spec* spec) { spec->prefetch_bytes = LargestGatheredBytes(*spec); }

void Outer(Spec* spec, Strategy strategy) {
  spec->mesh = Mesh::DataParallel(1, 2 * spec->mesh.world());
  spec->global_batch *= 2;
  spec->mesh = spec->mesh.WithReplicas(2);
  spec->outer_strategy = strategy;
}

ProgramCase TiedEvaluationOverAnOuterAxis() {
  Spec spec = SmallSpec(Strategy::kOptimGradsParams);
  Outer(&spec, Strategy::kOptim);
  Tie(&spec);
  return CompiledEvaluation(spec);
}

TEST(NoShard, CastsLocallyAndReducesWholeGradientOnce) {
  EXPECT_EQ(ThreeUnits(Strategy::kNoShard, TwoMicroBatches).Lines(),
            (Lines{
                "#0 Gather embedding on compute",
                "#1 Gather layer.0 on compute",
                "#2 Gather head on compute",
                "#3 Forward embedding mb 0 on compute",
                "#4 Forward layer.0 mb 0 on compute",
                "#5 ForwardBackward head mb 0 on compute",
                "#6 Backward layer.0 mb 0 on compute",
                "#7 Backward embedding mb 0 on compute",
                "#8 Forward embedding mb 1 on compute",
                "#9 Forward layer.0 mb 1 on compute",
                "#10 ForwardBackward head mb 1 adding on compute",
                "#11 Reduce head mb 1 on reduce after #10",
                "#12 Backward layer.0 mb 1 adding on compute",
                "#13 Reduce layer.0 mb 1 on reduce after #12",
                "#14 Backward embedding mb 1 adding on compute",
                "#15 Reduce embedding mb 1 on reduce after #14",
                "#16 Norm on reduce",
                "#17 Update embedding on compute after #16",
                "#18 Update layer.0 on compute",
                "#19 Update head on compute",
            }));
}

TEST(Optim, GathersOnceAndReducesWholeGradientOnce) {
  EXPECT_EQ(ThreeUnits(Strategy::kOptim, TwoMicroBatches).Lines(),
            (Lines{
                "#0 Gather embedding on gather after previous #17",
                "#1 Gather layer.0 on gather after previous #18",
                "#2 Gather head on gather after previous #19",
                "#3 Forward embedding mb 0 on compute after #0",
                "#4 Forward layer.0 mb 0 on compute after #1",
                "#5 ForwardBackward head mb 0 on compute after #2",
                "#6 Backward layer.0 mb 0 on compute",
                "#7 Backward embedding mb 0 on compute",
                "#8 Forward embedding mb 1 on compute",
                "#9 Forward layer.0 mb 1 on compute",
                "#10 ForwardBackward head mb 1 adding on compute",
                "#11 Reduce head mb 1 on reduce after #10",
                "#12 Backward layer.0 mb 1 adding on compute",
                "#13 Reduce layer.0 mb 1 on reduce after #12",
                "#14 Backward embedding mb 1 adding on compute",
                "#15 Reduce embedding mb 1 on reduce after #14",
                "#16 Norm on reduce",
                "#17 Update embedding on compute after #16",
                "#18 Update layer.0 on compute",
                "#19 Update head on compute",
            }));
}

TEST(OptimGrads, KeepsTwoReducesInFlight) {
  EXPECT_EQ(ThreeUnits(Strategy::kOptimGrads, TwoMicroBatches).Lines(),
            (Lines{
                "#0 Gather embedding on gather after previous #20",
                "#1 Gather layer.0 on gather after previous #21",
                "#2 Gather head on gather after previous #22",
                "#3 Forward embedding mb 0 on compute after #0",
                "#4 Forward layer.0 mb 0 on compute after #1",
                "#5 ForwardBackward head mb 0 on compute after #2",
                "#6 Reduce head mb 0 on reduce after #5",
                "#7 Backward layer.0 mb 0 on compute",
                "#8 Reduce layer.0 mb 0 on reduce after #7",
                "#9 Backward embedding mb 0 on compute after #6",
                "#10 Reduce embedding mb 0 on reduce after #9",
                "#11 Forward embedding mb 1 on compute",
                "#12 Forward layer.0 mb 1 on compute",
                "#13 ForwardBackward head mb 1 on compute after #8",
                "#14 Reduce head mb 1 adding on reduce after #13",
                "#15 Backward layer.0 mb 1 on compute after #10",
                "#16 Reduce layer.0 mb 1 adding on reduce after #15",
                "#17 Backward embedding mb 1 on compute after #14",
                "#18 Reduce embedding mb 1 adding on reduce after #17",
                "#19 Norm on reduce",
                "#20 Update embedding on compute after #19",
                "#21 Update layer.0 on compute",
                "#22 Update head on compute",
            }));
}

TEST(OptimGradsParams, GathersAndReleasesPerPass) {
  EXPECT_EQ(ThreeUnits(Strategy::kOptimGradsParams).Lines(),
            (Lines{
                "#0 Gather embedding on gather after previous #17",
                "#1 Forward embedding mb 0 on compute after #0",
                "#2 Release embedding on compute",
                "#3 Gather layer.0 on gather after #2, previous #18",
                "#4 Forward layer.0 mb 0 on compute after #3",
                "#5 Release layer.0 on compute",
                "#6 Gather head on gather after #5, previous #19",
                "#7 ForwardBackward head mb 0 on compute after #6",
                "#8 Release head on compute",
                "#9 Reduce head mb 0 on reduce after #7",
                "#10 Gather layer.0 on gather after #8",
                "#11 Backward layer.0 mb 0 on compute after #10",
                "#12 Release layer.0 on compute",
                "#13 Reduce layer.0 mb 0 on reduce after #11",
                "#14 Backward embedding mb 0 on compute after #9",
                "#15 Reduce embedding mb 0 on reduce after #14",
                "#16 Norm on reduce",
                "#17 Update embedding on compute after #16",
                "#18 Update layer.0 on compute",
                "#19 Update head on compute",
            }));
}

TEST(OptimGradsParams, AccumulatesOverMicroBatches) {
  EXPECT_EQ(ThreeUnits(Strategy::kOptimGradsParams, TwoMicroBatches).Lines(),
            (Lines{
                "#0 Gather embedding on gather after previous #33",
                "#1 Forward embedding mb 0 on compute after #0",
                "#2 Release embedding on compute",
                "#3 Gather layer.0 on gather after #2, previous #34",
                "#4 Forward layer.0 mb 0 on compute after #3",
                "#5 Release layer.0 on compute",
                "#6 Gather head on gather after #5, previous #35",
                "#7 ForwardBackward head mb 0 on compute after #6",
                "#8 Release head on compute",
                "#9 Reduce head mb 0 on reduce after #7",
                "#10 Gather layer.0 on gather after #8",
                "#11 Backward layer.0 mb 0 on compute after #10",
                "#12 Release layer.0 on compute",
                "#13 Reduce layer.0 mb 0 on reduce after #11",
                "#14 Backward embedding mb 0 on compute after #9",
                "#15 Reduce embedding mb 0 on reduce after #14",
                "#16 Gather embedding on gather after #14",
                "#17 Forward embedding mb 1 on compute after #16",
                "#18 Release embedding on compute",
                "#19 Gather layer.0 on gather after #18",
                "#20 Forward layer.0 mb 1 on compute after #19",
                "#21 Release layer.0 on compute",
                "#22 Gather head on gather after #21",
                "#23 ForwardBackward head mb 1 on compute after #13, #22",
                "#24 Release head on compute",
                "#25 Reduce head mb 1 adding on reduce after #23",
                "#26 Gather layer.0 on gather after #24",
                "#27 Backward layer.0 mb 1 on compute after #15, #26",
                "#28 Release layer.0 on compute",
                "#29 Reduce layer.0 mb 1 adding on reduce after #27",
                "#30 Backward embedding mb 1 on compute after #25",
                "#31 Reduce embedding mb 1 adding on reduce after #30",
                "#32 Norm on reduce",
                "#33 Update embedding on compute after #32",
                "#34 Update layer.0 on compute",
                "#35 Update head on compute",
            }));
}

TEST(OptimGradsParams, PrefetchesWithinBound) {
  EXPECT_EQ(ThreeUnits(Strategy::kOptimGradsParams, PrefetchOneUnit).Lines(),
            (Lines{
                "#0 Gather embedding on gather after previous #17",
                "#1 Gather layer.0 on gather after previous #18",
                "#2 Forward embedding mb 0 on compute after #0",
                "#3 Release embedding on compute",
                "#4 Gather head on gather after #3, previous #19",
                "#5 Forward layer.0 mb 0 on compute after #1",
                "#6 Release layer.0 on compute",
                "#7 Gather layer.0 on gather after #6",
                "#8 ForwardBackward head mb 0 on compute after #4",
                "#9 Release head on compute",
                "#10 Reduce head mb 0 on reduce after #8",
                "#11 Backward layer.0 mb 0 on compute after #7",
                "#12 Release layer.0 on compute",
                "#13 Reduce layer.0 mb 0 on reduce after #11",
                "#14 Backward embedding mb 0 on compute after #10",
                "#15 Reduce embedding mb 0 on reduce after #14",
                "#16 Norm on reduce",
                "#17 Update embedding on compute after #16",
                "#18 Update layer.0 on compute",
                "#19 Update head on compute",
            }));
}

TEST(OptimGradsParams, KeepGatheredReleasesAfterLastUse) {
  EXPECT_EQ(ThreeUnits(Strategy::kOptimGradsParams,
                       [](Spec* spec) {
                         TwoMicroBatches(spec);
                         spec->keep_gathered = true;
                       })
                .Lines(),
            (Lines{
                "#0 Gather embedding on gather after previous #23",
                "#1 Gather layer.0 on gather after previous #24",
                "#2 Gather head on gather after previous #25",
                "#3 Forward embedding mb 0 on compute after #0",
                "#4 Forward layer.0 mb 0 on compute after #1",
                "#5 ForwardBackward head mb 0 on compute after #2",
                "#6 Reduce head mb 0 on reduce after #5",
                "#7 Backward layer.0 mb 0 on compute",
                "#8 Reduce layer.0 mb 0 on reduce after #7",
                "#9 Backward embedding mb 0 on compute after #6",
                "#10 Reduce embedding mb 0 on reduce after #9",
                "#11 Forward embedding mb 1 on compute",
                "#12 Release embedding on compute",
                "#13 Forward layer.0 mb 1 on compute",
                "#14 ForwardBackward head mb 1 on compute after #8",
                "#15 Release head on compute",
                "#16 Reduce head mb 1 adding on reduce after #14",
                "#17 Backward layer.0 mb 1 on compute after #10",
                "#18 Release layer.0 on compute",
                "#19 Reduce layer.0 mb 1 adding on reduce after #17",
                "#20 Backward embedding mb 1 on compute after #16",
                "#21 Reduce embedding mb 1 adding on reduce after #20",
                "#22 Norm on reduce",
                "#23 Update embedding on compute after #22",
                "#24 Update layer.0 on compute",
                "#25 Update head on compute",
            }));
}

TEST(Hsdp, ReducesOverReplicasAfterLastMicroBatch) {
  EXPECT_EQ(ThreeUnits(Strategy::kOptimGradsParams,
                       [](Spec* spec) {
                         TwoMicroBatches(spec);
                         Outer(spec, Strategy::kNoShard);
                       })
                .Lines(),
            (Lines{
                "#0 Gather embedding on gather after previous #36",
                "#1 Forward embedding mb 0 on compute after #0",
                "#2 Release embedding on compute",
                "#3 Gather layer.0 on gather after #2, previous #37",
                "#4 Forward layer.0 mb 0 on compute after #3",
                "#5 Release layer.0 on compute",
                "#6 Gather head on gather after #5, previous #38",
                "#7 ForwardBackward head mb 0 on compute after #6",
                "#8 Release head on compute",
                "#9 Reduce head mb 0 on reduce after #7",
                "#10 Gather layer.0 on gather after #8",
                "#11 Backward layer.0 mb 0 on compute after #10",
                "#12 Release layer.0 on compute",
                "#13 Reduce layer.0 mb 0 on reduce after #11",
                "#14 Backward embedding mb 0 on compute after #9",
                "#15 Reduce embedding mb 0 on reduce after #14",
                "#16 Gather embedding on gather after #14",
                "#17 Forward embedding mb 1 on compute after #16",
                "#18 Release embedding on compute",
                "#19 Gather layer.0 on gather after #18",
                "#20 Forward layer.0 mb 1 on compute after #19",
                "#21 Release layer.0 on compute",
                "#22 Gather head on gather after #21",
                "#23 ForwardBackward head mb 1 on compute after #13, #22",
                "#24 Release head on compute",
                "#25 Reduce head mb 1 adding on reduce after #23",
                "#26 ReduceOuter head on outer after #25",
                "#27 Gather layer.0 on gather after #24",
                "#28 Backward layer.0 mb 1 on compute after #15, #27",
                "#29 Release layer.0 on compute",
                "#30 Reduce layer.0 mb 1 adding on reduce after #28",
                "#31 ReduceOuter layer.0 on outer after #30",
                "#32 Backward embedding mb 1 on compute after #25",
                "#33 Reduce embedding mb 1 adding on reduce after #32",
                "#34 ReduceOuter embedding on outer after #33",
                "#35 Norm on reduce after #34",
                "#36 Update embedding on compute after #35",
                "#37 Update layer.0 on compute",
                "#38 Update head on compute",
            }));
}

TEST(Hfsdp, PublishesMainPiecesBeforeGather) {
  EXPECT_EQ(
      ThreeUnits(Strategy::kOptimGradsParams, [](Spec* spec) { Outer(spec, Strategy::kOptim); }).Lines(),
      (Lines{
          "#0 Publish embedding on outer after previous #23",
          "#1 Publish layer.0 on outer after previous #24",
          "#2 Publish head on outer after previous #25",
          "#3 Gather embedding on gather after #0",
          "#4 Forward embedding mb 0 on compute after #3",
          "#5 Release embedding on compute",
          "#6 Gather layer.0 on gather after #1, #5",
          "#7 Forward layer.0 mb 0 on compute after #6",
          "#8 Release layer.0 on compute",
          "#9 Gather head on gather after #2, #8",
          "#10 ForwardBackward head mb 0 on compute after #9",
          "#11 Release head on compute",
          "#12 Reduce head mb 0 on reduce after #10",
          "#13 ReduceOuter head on outer after #12",
          "#14 Gather layer.0 on gather after #11",
          "#15 Backward layer.0 mb 0 on compute after #14",
          "#16 Release layer.0 on compute",
          "#17 Reduce layer.0 mb 0 on reduce after #15",
          "#18 ReduceOuter layer.0 on outer after #17",
          "#19 Backward embedding mb 0 on compute after #12",
          "#20 Reduce embedding mb 0 on reduce after #19",
          "#21 ReduceOuter embedding on outer after #20",
          "#22 Norm on reduce after #21",
          "#23 Update embedding on compute after #22",
          "#24 Update layer.0 on compute",
          "#25 Update head on compute",
      }));
}

TEST(Tied, GathersLenderForBorrowerAndAccumulates) {
  EXPECT_EQ(ThreeUnits(Strategy::kOptimGradsParams, Tie).Lines(),
            (Lines{
                "#0 Gather embedding on gather after previous #19",
                "#1 Forward embedding mb 0 on compute after #0",
                "#2 Release embedding on compute",
                "#3 Gather layer.0 on gather after #2, previous #20",
                "#4 Forward layer.0 mb 0 on compute after #3",
                "#5 Release layer.0 on compute",
                "#6 Gather embedding on gather after #5",
                "#7 Gather head on gather after previous #21",
                "#8 ForwardBackward head mb 0 on compute after #7",
                "#9 Release embedding on compute",
                "#10 Release head on compute",
                "#11 Reduce head mb 0 on reduce after #8",
                "#12 Gather layer.0 on gather after #10",
                "#13 Backward layer.0 mb 0 on compute after #12",
                "#14 Release layer.0 on compute",
                "#15 Reduce layer.0 mb 0 on reduce after #13",
                "#16 Backward embedding mb 0 adding on compute after #11",
                "#17 Reduce embedding mb 0 on reduce after #16",
                "#18 Norm on reduce",
                "#19 Update embedding on compute after #18",
                "#20 Update layer.0 on compute",
                "#21 Update head on compute",
            }));
}

// Both write the lender's reduce buffer, so the previous micro-batch's Reduce must have completed.
TEST(Tied, BorrowerWaitsForPreviousReduceOfLender) {
  const Lines lines = ThreeUnits(Strategy::kOptimGradsParams, [](Spec* spec) {
                        TwoMicroBatches(spec);
                        Tie(spec);
                      }).Lines();
  EXPECT_EQ(lines[17], "#17 Reduce embedding mb 0 on reduce after #16");
  EXPECT_EQ(lines[26], "#26 ForwardBackward head mb 1 on compute after #17, #25");
}

TEST(Tied, AccumulatesUnshardedGradientsInLender) {
  EXPECT_EQ(ThreeUnits(Strategy::kNoShard, Tie).Lines(), (Lines{
                                                             "#0 Gather embedding on compute",
                                                             "#1 Gather layer.0 on compute",
                                                             "#2 Gather head on compute",
                                                             "#3 Forward embedding mb 0 on compute",
                                                             "#4 Forward layer.0 mb 0 on compute",
                                                             "#5 ForwardBackward head mb 0 on compute",
                                                             "#6 Reduce head mb 0 on reduce after #5",
                                                             "#7 Backward layer.0 mb 0 on compute",
                                                             "#8 Reduce layer.0 mb 0 on reduce after #7",
                                                             "#9 Backward embedding mb 0 adding on compute",
                                                             "#10 Reduce embedding mb 0 on reduce after #9",
                                                             "#11 Norm on reduce",
                                                             "#12 Update embedding on compute after #11",
                                                             "#13 Update layer.0 on compute",
                                                             "#14 Update head on compute",
                                                         }));
}

TEST(Frozen, GathersButNeverReducesOrUpdates) {
  EXPECT_EQ(ThreeUnits(Strategy::kOptimGradsParams,
                       [](Spec* spec) {
                         spec->frozen = {"embedding.*", "layer.0.attention*"};
                       })
                .Lines(),
            (Lines{
                "#0 Gather embedding on gather after previous #18",
                "#1 Forward embedding mb 0 on compute after #0",
                "#2 Release embedding on compute",
                "#3 Gather layer.0/0 on gather after #2",
                "#4 Gather layer.0/1 on gather",
                "#5 Forward layer.0 mb 0 on compute after #4",
                "#6 Release layer.0 on compute",
                "#7 Gather head on gather after #6, previous #19",
                "#8 ForwardBackward head mb 0 on compute after #7",
                "#9 Release head on compute",
                "#10 Reduce head mb 0 on reduce after #8",
                "#11 Gather layer.0/0 on gather after #9",
                "#12 Gather layer.0/1 on gather",
                "#13 Backward layer.0 mb 0 on compute after #12",
                "#14 Release layer.0 on compute",
                "#15 Reduce layer.0/0 mb 0 on reduce after #13",
                "#16 Backward embedding mb 0 on compute",
                "#17 Norm on reduce after #16",
                "#18 Update layer.0/0 on compute after #17",
                "#19 Update head on compute",
            }));
}

void Balance(Spec* spec) {
  ExpertsConfig& experts = std::get<LlamaConfig>(spec->model).experts;
  experts = {8, 2, 64};
  experts.sigmoid = experts.selection_bias = true;
  experts.bias_update_rate = 0.001;
}

// The layer's second bucket is its selection bias.
TEST(Balancing, UpdatesWithoutGradientThenSnapshots) {
  for (const Strategy strategy : {Strategy::kNoShard, Strategy::kOptimGradsParams}) {
    const ProgramCase made = ThreeUnits(strategy, [](Spec* spec) {
      Save(spec);
      Balance(spec);
    });
    Lines of_bias;
    for (size_t i = 0; i < made.program.instructions.size(); ++i) {
      const Instruction& at = made.program.instructions[i];
      if (at.bucket < 0 || !made.layout.buckets[at.bucket].is_selection_bias()) continue;
      of_bias.push_back(NameOf(at.op));
      if (at.op == Op::kUpdate) EXPECT_TRUE(at.uses.empty());
      if (at.op == Op::kUpdate) EXPECT_EQ(at.after_previous.size(), 1u);
      if (at.op == Op::kSnapshot) EXPECT_EQ(at.after.size(), 1u);
    }
    const bool again = strategy == Strategy::kOptimGradsParams;
    EXPECT_EQ(of_bias, again ? (Lines{"Gather", "Gather", "Update", "Snapshot"})
                             : (Lines{"Gather", "Update", "Snapshot"}));
  }
}

TEST(Evaluation, RunsOneForwardPass) {
  EXPECT_EQ(CompiledEvaluation(SmallSpec(Strategy::kOptimGradsParams)).Lines(),
            (Lines{
                "#0 Gather embedding on gather after previous #9",
                "#1 Forward embedding mb 0 on compute after #0",
                "#2 Release embedding on compute",
                "#3 Gather layer.0 on gather after #2",
                "#4 Forward layer.0 mb 0 on compute after #3",
                "#5 Release layer.0 on compute",
                "#6 Gather head on gather after #5",
                "#7 Forward head mb 0 on compute after #6",
                "#8 Release head on compute",
                "#9 Loss on reduce after #8",
            }));
}

TEST(Evaluation, UsesGatherLaneOfStrategy) {
  EXPECT_EQ(CompiledEvaluation(SmallSpec(Strategy::kNoShard)).Lines(),
            (Lines{
                "#0 Gather embedding on compute after previous #9",
                "#1 Gather layer.0 on compute",
                "#2 Gather head on compute",
                "#3 Forward embedding mb 0 on compute",
                "#4 Release embedding on compute",
                "#5 Forward layer.0 mb 0 on compute",
                "#6 Release layer.0 on compute",
                "#7 Forward head mb 0 on compute",
                "#8 Release head on compute",
                "#9 Loss on reduce after #8",
            }));
}

TEST(Evaluation, PublishesFirstWithHfsdp) {
  EXPECT_EQ(TiedEvaluationOverAnOuterAxis().Lines(), (Lines{
                                                         "#0 Publish embedding on outer after previous #14",
                                                         "#1 Publish layer.0 on outer",
                                                         "#2 Publish head on outer",
                                                         "#3 Gather embedding on gather after #0",
                                                         "#4 Forward embedding mb 0 on compute after #3",
                                                         "#5 Release embedding on compute",
                                                         "#6 Gather layer.0 on gather after #1, #5",
                                                         "#7 Forward layer.0 mb 0 on compute after #6",
                                                         "#8 Release layer.0 on compute",
                                                         "#9 Gather embedding on gather after #8",
                                                         "#10 Gather head on gather after #2",
                                                         "#11 Forward head mb 0 on compute after #10",
                                                         "#12 Release embedding on compute",
                                                         "#13 Release head on compute",
                                                         "#14 Loss on reduce after #13",
                                                     }));
}

TEST(Program, BackwardUsesRecomputeOfForward) {
  const ProgramCase made = Compiled([] {
    Spec spec = PresetSpec("tiny", 2, 1);
    spec.recompute = Recompute::kFull;
    spec.recompute_layers = 1;
    return spec;
  }());
  for (const Instruction& at : made.program.instructions) {
    if (at.op != Op::kForward && at.op != Op::kBackward && at.op != Op::kForwardBackward) continue;
    EXPECT_EQ(at.recompute, RecomputeOf(made.spec, made.model, at.unit));
  }
  EXPECT_EQ(made.program.instructions[1].recompute, Recompute::kNone);  // Of the embedding.
}

TEST(Program, BorrowerUsesBuffersOfLender) {
  const ProgramCase made = ThreeUnits(Strategy::kOptimGradsParams, Tie);
  const auto uses = [&](int instruction) {
    std::string text;
    for (const BufferUse& use : made.program.instructions[instruction].uses) {
      const Buffer& buffer = made.program.buffers[use.buffer];
      text += std::string(use.access == Access::kRead ? " reads " : " writes ") + NameOf(buffer.kind) + " " +
              made.layout.units[made.layout.buckets[buffer.bucket].unit].name;
    }
    return text;
  };
  EXPECT_EQ(uses(8),  // The head's.
            " reads gathered embedding reads gathered head writes reduce embedding writes reduce head");
  EXPECT_EQ(uses(9), " reads gathered embedding");                         // Its Release.
  EXPECT_EQ(uses(16), " reads reduce embedding writes reduce embedding");  // Of the lender itself.
  EXPECT_EQ(uses(17), " reads reduce embedding writes reduce embedding");
  for (const Buffer& buffer : made.program.buffers) {
    if (buffer.bucket != 0 || buffer.kind != BufferKind::kReduce) continue;
    ASSERT_EQ(buffer.live.size(), 1u);
    EXPECT_EQ(buffer.live[0].born, 8);  // The head's.
    EXPECT_EQ(buffer.live[0].dies, 17);
  }
}

TEST(Program, WireBufferExistsOnlyBelowFp32) {
  for (const Strategy strategy : kStrategies) {
    for (const DType grad_comm : {DType::kFp32, DType::kBf16}) {
      const ProgramCase made =
          ThreeUnits(strategy, [&](Spec* spec) { spec->precision.grad_comm = grad_comm; });
      const bool wanted = grad_comm == DType::kBf16 && made.spec.shards_grads();
      EXPECT_EQ(made.layout.buckets[0].types.grad_comm, wanted ? DType::kBf16 : DType::kFp32);
      int wires = 0;
      for (const Buffer& buffer : made.program.buffers) {
        if (buffer.kind == BufferKind::kReduce) {
          EXPECT_EQ(buffer.bytes, made.layout.buckets[buffer.bucket].bucket_elements * (wanted ? 2 : 4));
        }
        if (buffer.kind != BufferKind::kWire) continue;
        ++wires;
        ASSERT_EQ(buffer.live.size(), 1u);
        EXPECT_EQ(buffer.live[0].born, buffer.live[0].dies);
        const Instruction& reduce = made.program.instructions[buffer.live[0].born];
        EXPECT_EQ(reduce.op, Op::kReduce);
        EXPECT_EQ(reduce.bucket, buffer.bucket);
      }
      EXPECT_EQ(wires, wanted ? 3 : 0) << NameOf(strategy);
    }
  }
}

TEST(Program, UpdateReadsWholeGradientOnlyWithNoShard) {
  for (const Strategy strategy : kStrategies) {
    const ProgramCase made = ThreeUnits(strategy);
    for (const Instruction& at : made.program.instructions) {
      if (at.op != Op::kUpdate) continue;
      EXPECT_EQ(at.uses.size(), strategy == Strategy::kNoShard ? 1u : 0u) << NameOf(strategy);
    }
  }
}

TEST(Program, StepEndsWithSnapshotsIfJobSaves) {
  const ProgramCase made = ThreeUnits(Strategy::kOptimGradsParams, [](Spec* spec) {
    Save(spec);
    spec->frozen = {"embedding.*"};
  });
  Lines lines = made.Lines();
  const auto norm = std::find_if(lines.begin(), lines.end(), [](const std::string& line) {
    return line.find(" Norm ") != std::string::npos;
  });
  ASSERT_NE(norm, lines.end());
  EXPECT_EQ(Lines(norm, lines.end()), (Lines{
                                          "#15 Norm on reduce after #14",
                                          "#16 Update layer.0 on compute after #15, previous #18",
                                          "#17 Update head on compute after previous #19",
                                          "#18 Snapshot layer.0 on copy after #16",
                                          "#19 Snapshot head on copy after #17",
                                          "#20 Snapshot embedding on copy",
                                      }));
  for (const Instruction& at : made.program.instructions) {
    if (at.op != Op::kSnapshot) continue;
    EXPECT_EQ(at.group, Group::kSelf);
    EXPECT_TRUE(at.uses.empty());
  }
}

// Arena, order and dependencies are those of a job that does not save.
TEST(Program, SnapshotsDoNotChangeRestOfStep) {
  const std::function<void(Spec*)> changes[] = {
      [](Spec*) {}, Tie, TwoMicroBatches, [](Spec* spec) { spec->frozen = {"head.*"}; },
      [](Spec* spec) { spec->precision.compute = spec->precision.grad_comm = DType::kBf16; }};
  for (const Strategy strategy : kStrategies) {
    for (const auto& change : changes) {
      const ProgramCase compiled = ThreeUnits(strategy, change);
      const Program& plain = compiled.program;
      Program saving = ThreeUnits(strategy, [&](Spec* spec) {
                         change(spec);
                         Save(spec);
                       }).program;
      const auto kept = static_cast<int>(plain.instructions.size());
      ASSERT_EQ(saving.instructions.size(), plain.instructions.size() + 3);
      saving.instructions.resize(kept);
      for (Instruction& at : saving.instructions) {
        std::vector<int>& waits = at.after_previous;
        waits.erase(std::remove_if(waits.begin(), waits.end(), [&](int other) { return other >= kept; }),
                    waits.end());
      }
      EXPECT_EQ(Fingerprint(compiled.spec, compiled.layout, saving),
                Fingerprint(compiled.spec, compiled.layout, plain))
          << NameOf(strategy);
      EXPECT_EQ(saving.arena_bytes, plain.arena_bytes);
      EXPECT_EQ(saving.live_peak_bytes, plain.live_peak_bytes);
    }
  }
}

TEST(Program, EvaluationHasNoSnapshots) {
  Spec spec = SmallSpec(Strategy::kOptimGradsParams);
  const Lines without = CompiledEvaluation(spec).Lines();
  Save(&spec);
  EXPECT_EQ(CompiledEvaluation(spec).Lines(), without);
}

TEST(Program, HashIsStableAndDiffersBetweenPrograms) {
  std::vector<std::string> hashes;
  for (const Strategy strategy : kStrategies) {
    for (const ProgramCase& of : {ThreeUnits(strategy), ThreeUnits(strategy, Tie), ThreeUnits(strategy, Save),
                                  CompiledEvaluation(SmallSpec(strategy))})
      hashes.push_back(HashOf(Fingerprint(of.spec, of.layout, of.program)));
    const ProgramCase again = ThreeUnits(strategy);
    EXPECT_EQ(HashOf(Fingerprint(again.spec, again.layout, again.program)), hashes[hashes.size() - 4]);
  }
  std::sort(hashes.begin(), hashes.end());
  EXPECT_EQ(std::unique(hashes.begin(), hashes.end()), hashes.end());
}

}  // namespace
}  // namespace fsdpd
