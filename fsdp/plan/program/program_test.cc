#include "fsdp/plan/program/program.h"

#include <gtest/gtest.h>

#include <algorithm>

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

TEST(NoShard, GathersByCastingAndReducesTheWholeSumOnce) {
  EXPECT_EQ(ThreeUnits(Strategy::kNoShard, TwoMicroBatches).Lines(),
            (Lines{
                "#0 Gather embedding on compute",
                "#1 Gather layer.0 on compute",
                "#2 Gather head on compute",
                "#3 Forward embedding mb 0 on compute",
                "#4 Forward layer.0 mb 0 on compute",
                "#5 Forward head mb 0 on compute",
                "#6 Backward head mb 0 on compute",
                "#7 Backward layer.0 mb 0 on compute",
                "#8 Backward embedding mb 0 on compute",
                "#9 Forward embedding mb 1 on compute",
                "#10 Forward layer.0 mb 1 on compute",
                "#11 Forward head mb 1 on compute",
                "#12 Backward head mb 1 adding on compute",
                "#13 Reduce head mb 1 on reduce after #12",
                "#14 Backward layer.0 mb 1 adding on compute",
                "#15 Reduce layer.0 mb 1 on reduce after #14",
                "#16 Backward embedding mb 1 adding on compute",
                "#17 Reduce embedding mb 1 on reduce after #16",
                "#18 Norm on reduce",
                "#19 Update embedding on compute after #18",
                "#20 Update layer.0 on compute",
                "#21 Update head on compute",
            }));
}

TEST(Optim, GathersOnceAndReducesTheWholeSumOnce) {
  EXPECT_EQ(ThreeUnits(Strategy::kOptim, TwoMicroBatches).Lines(),
            (Lines{
                "#0 Gather embedding on gather after previous #19",
                "#1 Gather layer.0 on gather after previous #20",
                "#2 Gather head on gather after previous #21",
                "#3 Forward embedding mb 0 on compute after #0",
                "#4 Forward layer.0 mb 0 on compute after #1",
                "#5 Forward head mb 0 on compute after #2",
                "#6 Backward head mb 0 on compute",
                "#7 Backward layer.0 mb 0 on compute",
                "#8 Backward embedding mb 0 on compute",
                "#9 Forward embedding mb 1 on compute",
                "#10 Forward layer.0 mb 1 on compute",
                "#11 Forward head mb 1 on compute",
                "#12 Backward head mb 1 adding on compute",
                "#13 Reduce head mb 1 on reduce after #12",
                "#14 Backward layer.0 mb 1 adding on compute",
                "#15 Reduce layer.0 mb 1 on reduce after #14",
                "#16 Backward embedding mb 1 adding on compute",
                "#17 Reduce embedding mb 1 on reduce after #16",
                "#18 Norm on reduce",
                "#19 Update embedding on compute after #18",
                "#20 Update layer.0 on compute",
                "#21 Update head on compute",
            }));
}

TEST(OptimGrads, ReducesEveryMicroBatchWithTwoReducesInFlight) {
  EXPECT_EQ(ThreeUnits(Strategy::kOptimGrads, TwoMicroBatches).Lines(),
            (Lines{
                "#0 Gather embedding on gather after previous #22",
                "#1 Gather layer.0 on gather after previous #23",
                "#2 Gather head on gather after previous #24",
                "#3 Forward embedding mb 0 on compute after #0",
                "#4 Forward layer.0 mb 0 on compute after #1",
                "#5 Forward head mb 0 on compute after #2",
                "#6 Backward head mb 0 on compute",
                "#7 Reduce head mb 0 on reduce after #6",
                "#8 Backward layer.0 mb 0 on compute",
                "#9 Reduce layer.0 mb 0 on reduce after #8",
                "#10 Backward embedding mb 0 on compute after #7",
                "#11 Reduce embedding mb 0 on reduce after #10",
                "#12 Forward embedding mb 1 on compute",
                "#13 Forward layer.0 mb 1 on compute",
                "#14 Forward head mb 1 on compute",
                "#15 Backward head mb 1 on compute after #9",
                "#16 Reduce head mb 1 adding on reduce after #15",
                "#17 Backward layer.0 mb 1 on compute after #11",
                "#18 Reduce layer.0 mb 1 adding on reduce after #17",
                "#19 Backward embedding mb 1 on compute after #16",
                "#20 Reduce embedding mb 1 adding on reduce after #19",
                "#21 Norm on reduce",
                "#22 Update embedding on compute after #21",
                "#23 Update layer.0 on compute",
                "#24 Update head on compute",
            }));
}

TEST(OptimGradsParams, GathersForEachPassAndReleasesAfterIt) {
  EXPECT_EQ(ThreeUnits(Strategy::kOptimGradsParams).Lines(),
            (Lines{
                "#0 Gather embedding on gather after previous #20",
                "#1 Forward embedding mb 0 on compute after #0",
                "#2 Release embedding on compute",
                "#3 Gather layer.0 on gather after #2, previous #21",
                "#4 Forward layer.0 mb 0 on compute after #3",
                "#5 Release layer.0 on compute",
                "#6 Gather head on gather after #5, previous #22",
                "#7 Forward head mb 0 on compute after #6",
                "#8 Backward head mb 0 on compute",
                "#9 Release head on compute",
                "#10 Reduce head mb 0 on reduce after #8",
                "#11 Gather layer.0 on gather after #9",
                "#12 Backward layer.0 mb 0 on compute after #11",
                "#13 Release layer.0 on compute",
                "#14 Reduce layer.0 mb 0 on reduce after #12",
                "#15 Gather embedding on gather after #13",
                "#16 Backward embedding mb 0 on compute after #10, #15",
                "#17 Release embedding on compute",
                "#18 Reduce embedding mb 0 on reduce after #16",
                "#19 Norm on reduce",
                "#20 Update embedding on compute after #19",
                "#21 Update layer.0 on compute",
                "#22 Update head on compute",
            }));
}

TEST(OptimGradsParams, AccumulatesWithTheFirstUnitKeptBetweenMicroBatches) {
  EXPECT_EQ(ThreeUnits(Strategy::kOptimGradsParams, TwoMicroBatches).Lines(),
            (Lines{
                "#0 Gather embedding on gather after previous #37",
                "#1 Forward embedding mb 0 on compute after #0",
                "#2 Release embedding on compute",
                "#3 Gather layer.0 on gather after #2, previous #38",
                "#4 Forward layer.0 mb 0 on compute after #3",
                "#5 Release layer.0 on compute",
                "#6 Gather head on gather after #5, previous #39",
                "#7 Forward head mb 0 on compute after #6",
                "#8 Backward head mb 0 on compute",
                "#9 Release head on compute",
                "#10 Reduce head mb 0 on reduce after #8",
                "#11 Gather layer.0 on gather after #9",
                "#12 Backward layer.0 mb 0 on compute after #11",
                "#13 Release layer.0 on compute",
                "#14 Reduce layer.0 mb 0 on reduce after #12",
                "#15 Gather embedding on gather after #13",
                "#16 Backward embedding mb 0 on compute after #10, #15",
                "#17 Reduce embedding mb 0 on reduce after #16",
                "#18 Forward embedding mb 1 on compute",
                "#19 Release embedding on compute",
                "#20 Gather layer.0 on gather after #19",
                "#21 Forward layer.0 mb 1 on compute after #20",
                "#22 Release layer.0 on compute",
                "#23 Gather head on gather after #22",
                "#24 Forward head mb 1 on compute after #23",
                "#25 Backward head mb 1 on compute after #14",
                "#26 Release head on compute",
                "#27 Reduce head mb 1 adding on reduce after #25",
                "#28 Gather layer.0 on gather after #26",
                "#29 Backward layer.0 mb 1 on compute after #17, #28",
                "#30 Release layer.0 on compute",
                "#31 Reduce layer.0 mb 1 adding on reduce after #29",
                "#32 Gather embedding on gather after #30",
                "#33 Backward embedding mb 1 on compute after #27, #32",
                "#34 Release embedding on compute",
                "#35 Reduce embedding mb 1 adding on reduce after #33",
                "#36 Norm on reduce",
                "#37 Update embedding on compute after #36",
                "#38 Update layer.0 on compute",
                "#39 Update head on compute",
            }));
}

TEST(OptimGradsParams, GathersOneUnitAheadWhenItsBytesAreWithinTheBound) {
  EXPECT_EQ(ThreeUnits(Strategy::kOptimGradsParams, PrefetchOneUnit).Lines(),
            (Lines{
                "#0 Gather embedding on gather after previous #20",
                "#1 Gather layer.0 on gather after previous #21",
                "#2 Forward embedding mb 0 on compute after #0",
                "#3 Release embedding on compute",
                "#4 Gather head on gather after #3, previous #22",
                "#5 Forward layer.0 mb 0 on compute after #1",
                "#6 Release layer.0 on compute",
                "#7 Gather layer.0 on gather after #6",
                "#8 Forward head mb 0 on compute after #4",
                "#9 Backward head mb 0 on compute",
                "#10 Release head on compute",
                "#11 Reduce head mb 0 on reduce after #9",
                "#12 Gather embedding on gather after #10",
                "#13 Backward layer.0 mb 0 on compute after #7",
                "#14 Release layer.0 on compute",
                "#15 Reduce layer.0 mb 0 on reduce after #13",
                "#16 Backward embedding mb 0 on compute after #11, #12",
                "#17 Release embedding on compute",
                "#18 Reduce embedding mb 0 on reduce after #16",
                "#19 Norm on reduce",
                "#20 Update embedding on compute after #19",
                "#21 Update layer.0 on compute",
                "#22 Update head on compute",
            }));
}

TEST(OptimGradsParams, KeepsGatheredBucketsUntilTheLastUse) {
  EXPECT_EQ(ThreeUnits(Strategy::kOptimGradsParams,
                       [](Spec* spec) {
                         TwoMicroBatches(spec);
                         spec->keep_gathered = true;
                       })
                .Lines(),
            (Lines{
                "#0 Gather embedding on gather after previous #25",
                "#1 Gather layer.0 on gather after previous #26",
                "#2 Gather head on gather after previous #27",
                "#3 Forward embedding mb 0 on compute after #0",
                "#4 Forward layer.0 mb 0 on compute after #1",
                "#5 Forward head mb 0 on compute after #2",
                "#6 Backward head mb 0 on compute",
                "#7 Reduce head mb 0 on reduce after #6",
                "#8 Backward layer.0 mb 0 on compute",
                "#9 Reduce layer.0 mb 0 on reduce after #8",
                "#10 Backward embedding mb 0 on compute after #7",
                "#11 Reduce embedding mb 0 on reduce after #10",
                "#12 Forward embedding mb 1 on compute",
                "#13 Forward layer.0 mb 1 on compute",
                "#14 Forward head mb 1 on compute",
                "#15 Backward head mb 1 on compute after #9",
                "#16 Release head on compute",
                "#17 Reduce head mb 1 adding on reduce after #15",
                "#18 Backward layer.0 mb 1 on compute after #11",
                "#19 Release layer.0 on compute",
                "#20 Reduce layer.0 mb 1 adding on reduce after #18",
                "#21 Backward embedding mb 1 on compute after #17",
                "#22 Release embedding on compute",
                "#23 Reduce embedding mb 1 adding on reduce after #21",
                "#24 Norm on reduce",
                "#25 Update embedding on compute after #24",
                "#26 Update layer.0 on compute",
                "#27 Update head on compute",
            }));
}

TEST(Hsdp, ReducesOverTheOuterAxisAfterTheLastMicroBatch) {
  EXPECT_EQ(ThreeUnits(Strategy::kOptimGradsParams,
                       [](Spec* spec) {
                         TwoMicroBatches(spec);
                         Outer(spec, Strategy::kNoShard);
                       })
                .Lines(),
            (Lines{
                "#0 Gather embedding on gather after previous #40",
                "#1 Forward embedding mb 0 on compute after #0",
                "#2 Release embedding on compute",
                "#3 Gather layer.0 on gather after #2, previous #41",
                "#4 Forward layer.0 mb 0 on compute after #3",
                "#5 Release layer.0 on compute",
                "#6 Gather head on gather after #5, previous #42",
                "#7 Forward head mb 0 on compute after #6",
                "#8 Backward head mb 0 on compute",
                "#9 Release head on compute",
                "#10 Reduce head mb 0 on reduce after #8",
                "#11 Gather layer.0 on gather after #9",
                "#12 Backward layer.0 mb 0 on compute after #11",
                "#13 Release layer.0 on compute",
                "#14 Reduce layer.0 mb 0 on reduce after #12",
                "#15 Gather embedding on gather after #13",
                "#16 Backward embedding mb 0 on compute after #10, #15",
                "#17 Reduce embedding mb 0 on reduce after #16",
                "#18 Forward embedding mb 1 on compute",
                "#19 Release embedding on compute",
                "#20 Gather layer.0 on gather after #19",
                "#21 Forward layer.0 mb 1 on compute after #20",
                "#22 Release layer.0 on compute",
                "#23 Gather head on gather after #22",
                "#24 Forward head mb 1 on compute after #23",
                "#25 Backward head mb 1 on compute after #14",
                "#26 Release head on compute",
                "#27 Reduce head mb 1 adding on reduce after #25",
                "#28 ReduceOuter head on outer after #27",
                "#29 Gather layer.0 on gather after #26",
                "#30 Backward layer.0 mb 1 on compute after #17, #29",
                "#31 Release layer.0 on compute",
                "#32 Reduce layer.0 mb 1 adding on reduce after #30",
                "#33 ReduceOuter layer.0 on outer after #32",
                "#34 Gather embedding on gather after #31",
                "#35 Backward embedding mb 1 on compute after #27, #34",
                "#36 Release embedding on compute",
                "#37 Reduce embedding mb 1 adding on reduce after #35",
                "#38 ReduceOuter embedding on outer after #37",
                "#39 Norm on reduce after #38",
                "#40 Update embedding on compute after #39",
                "#41 Update layer.0 on compute",
                "#42 Update head on compute",
            }));
}

TEST(Hfsdp, PublishesMainPiecesBeforeTheyAreGathered) {
  EXPECT_EQ(
      ThreeUnits(Strategy::kOptimGradsParams, [](Spec* spec) { Outer(spec, Strategy::kOptim); }).Lines(),
      (Lines{
          "#0 Publish embedding on outer after previous #26",
          "#1 Publish layer.0 on outer after previous #27",
          "#2 Publish head on outer after previous #28",
          "#3 Gather embedding on gather after #0",
          "#4 Forward embedding mb 0 on compute after #3",
          "#5 Release embedding on compute",
          "#6 Gather layer.0 on gather after #1, #5",
          "#7 Forward layer.0 mb 0 on compute after #6",
          "#8 Release layer.0 on compute",
          "#9 Gather head on gather after #2, #8",
          "#10 Forward head mb 0 on compute after #9",
          "#11 Backward head mb 0 on compute",
          "#12 Release head on compute",
          "#13 Reduce head mb 0 on reduce after #11",
          "#14 ReduceOuter head on outer after #13",
          "#15 Gather layer.0 on gather after #12",
          "#16 Backward layer.0 mb 0 on compute after #15",
          "#17 Release layer.0 on compute",
          "#18 Reduce layer.0 mb 0 on reduce after #16",
          "#19 ReduceOuter layer.0 on outer after #18",
          "#20 Gather embedding on gather after #17",
          "#21 Backward embedding mb 0 on compute after #13, #20",
          "#22 Release embedding on compute",
          "#23 Reduce embedding mb 0 on reduce after #21",
          "#24 ReduceOuter embedding on outer after #23",
          "#25 Norm on reduce after #24",
          "#26 Update embedding on compute after #25",
          "#27 Update layer.0 on compute",
          "#28 Update head on compute",
      }));
}

TEST(Tied, GathersTheLenderForItsBorrowerAndAddsInTheLender) {
  EXPECT_EQ(ThreeUnits(Strategy::kOptimGradsParams, Tie).Lines(),
            (Lines{
                "#0 Gather embedding on gather after previous #22",
                "#1 Forward embedding mb 0 on compute after #0",
                "#2 Release embedding on compute",
                "#3 Gather layer.0 on gather after #2, previous #23",
                "#4 Forward layer.0 mb 0 on compute after #3",
                "#5 Release layer.0 on compute",
                "#6 Gather embedding on gather after #5",
                "#7 Gather head on gather after previous #24",
                "#8 Forward head mb 0 on compute after #7",
                "#9 Backward head mb 0 on compute",
                "#10 Release embedding on compute",
                "#11 Release head on compute",
                "#12 Reduce head mb 0 on reduce after #9",
                "#13 Gather layer.0 on gather after #11",
                "#14 Backward layer.0 mb 0 on compute after #13",
                "#15 Release layer.0 on compute",
                "#16 Reduce layer.0 mb 0 on reduce after #14",
                "#17 Gather embedding on gather after #15",
                "#18 Backward embedding mb 0 adding on compute after #12, #17",
                "#19 Release embedding on compute",
                "#20 Reduce embedding mb 0 on reduce after #18",
                "#21 Norm on reduce",
                "#22 Update embedding on compute after #21",
                "#23 Update layer.0 on compute",
                "#24 Update head on compute",
            }));
}

// Both fill the lender's reduce buffer, so what the micro-batch before left there must have gone.
TEST(Tied, TheBorrowerWaitsForTheLendersReduceOfTheMicroBatchBefore) {
  const Lines lines = ThreeUnits(Strategy::kOptimGradsParams, [](Spec* spec) {
                        TwoMicroBatches(spec);
                        Tie(spec);
                      }).Lines();
  EXPECT_EQ(lines[19], "#19 Reduce embedding mb 0 on reduce after #18");
  EXPECT_EQ(lines[28], "#28 Backward head mb 1 on compute after #19");
}

TEST(Tied, AddsInTheLenderWhereGradientsAreWhole) {
  EXPECT_EQ(ThreeUnits(Strategy::kNoShard, Tie).Lines(), (Lines{
                                                             "#0 Gather embedding on compute",
                                                             "#1 Gather layer.0 on compute",
                                                             "#2 Gather head on compute",
                                                             "#3 Forward embedding mb 0 on compute",
                                                             "#4 Forward layer.0 mb 0 on compute",
                                                             "#5 Forward head mb 0 on compute",
                                                             "#6 Backward head mb 0 on compute",
                                                             "#7 Reduce head mb 0 on reduce after #6",
                                                             "#8 Backward layer.0 mb 0 on compute",
                                                             "#9 Reduce layer.0 mb 0 on reduce after #8",
                                                             "#10 Backward embedding mb 0 adding on compute",
                                                             "#11 Reduce embedding mb 0 on reduce after #10",
                                                             "#12 Norm on reduce",
                                                             "#13 Update embedding on compute after #12",
                                                             "#14 Update layer.0 on compute",
                                                             "#15 Update head on compute",
                                                         }));
}

TEST(Frozen, BucketsAreGatheredAndNeverReducedOrUpdated) {
  EXPECT_EQ(ThreeUnits(Strategy::kOptimGradsParams,
                       [](Spec* spec) {
                         spec->frozen = {"embedding.*", "layer.0.attention*"};
                       })
                .Lines(),
            (Lines{
                "#0 Gather embedding on gather after previous #21",
                "#1 Forward embedding mb 0 on compute after #0",
                "#2 Release embedding on compute",
                "#3 Gather layer.0/0 on gather after #2",
                "#4 Gather layer.0/1 on gather",
                "#5 Forward layer.0 mb 0 on compute after #4",
                "#6 Release layer.0 on compute",
                "#7 Gather head on gather after #6, previous #22",
                "#8 Forward head mb 0 on compute after #7",
                "#9 Backward head mb 0 on compute",
                "#10 Release head on compute",
                "#11 Reduce head mb 0 on reduce after #9",
                "#12 Gather layer.0/0 on gather after #10",
                "#13 Gather layer.0/1 on gather",
                "#14 Backward layer.0 mb 0 on compute after #13",
                "#15 Release layer.0 on compute",
                "#16 Reduce layer.0/0 mb 0 on reduce after #14",
                "#17 Gather embedding on gather after #15",
                "#18 Backward embedding mb 0 on compute after #17",
                "#19 Release embedding on compute",
                "#20 Norm on reduce after #18",
                "#21 Update layer.0/0 on compute after #20",
                "#22 Update head on compute",
            }));
}

TEST(Evaluation, IsOneForwardPassOfTheSameUnits) {
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

TEST(Evaluation, GathersOnTheLaneOfTheStrategy) {
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

TEST(Evaluation, PublishesFirstWhereTheOuterAxisShards) {
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

TEST(Program, RunsBackwardWithWhatItsForwardKept) {
  const ProgramCase made = Compiled([] {
    Spec spec = PresetSpec("tiny", 2, 1);
    spec.recompute = Recompute::kFull;
    spec.recompute_layers = 1;
    return spec;
  }());
  for (const Instruction& at : made.program.instructions) {
    if (at.op != Op::kForward && at.op != Op::kBackward) continue;
    EXPECT_EQ(at.recompute, RecomputeOf(made.spec, made.model, at.unit));
  }
  EXPECT_EQ(made.program.instructions[1].recompute, Recompute::kNone);  // Of the embedding.
}

TEST(Program, ABorrowerReadsAndFillsTheLendersBuffers) {
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
  EXPECT_EQ(uses(8), " reads gathered embedding reads gathered head");  // Forward head.
  EXPECT_EQ(uses(9),
            " reads gathered embedding reads gathered head writes reduce embedding writes reduce head");
  EXPECT_EQ(uses(10), " reads gathered embedding");  // Its Release.
  EXPECT_EQ(uses(18), " reads gathered embedding reads reduce embedding writes reduce embedding");
  EXPECT_EQ(uses(20), " reads reduce embedding writes reduce embedding");
  for (const Buffer& buffer : made.program.buffers) {
    if (buffer.bucket != 0 || buffer.kind != BufferKind::kReduce) continue;
    ASSERT_EQ(buffer.live.size(), 1u);
    EXPECT_EQ(buffer.live[0].born, 9);  // The head's Backward.
    EXPECT_EQ(buffer.live[0].dies, 20);
  }
}

TEST(Program, AWireBufferIsThereOnlyForReducesInLessThanFp32) {
  for (const Strategy strategy : kStrategies) {
    for (const DType grad_comm : {DType::kFp32, DType::kBf16}) {
      const ProgramCase made =
          ThreeUnits(strategy, [&](Spec* spec) { spec->precision.grad_comm = grad_comm; });
      const bool wanted = grad_comm == DType::kBf16 && made.spec.shards_grads();
      EXPECT_EQ(made.layout.buckets[0].types.wire, wanted ? DType::kBf16 : DType::kFp32);
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

TEST(Program, UpdateReadsTheWholeGradientOnlyWhereThereIsNoOther) {
  for (const Strategy strategy : kStrategies) {
    const ProgramCase made = ThreeUnits(strategy);
    for (const Instruction& at : made.program.instructions) {
      if (at.op != Op::kUpdate) continue;
      EXPECT_EQ(at.uses.size(), strategy == Strategy::kNoShard ? 1u : 0u) << NameOf(strategy);
    }
  }
}

TEST(Program, HashIsStableAndDiffersBetweenPrograms) {
  std::vector<uint64_t> hashes;
  for (const Strategy strategy : kStrategies) {
    hashes.push_back(ThreeUnits(strategy).program.hash);
    EXPECT_EQ(ThreeUnits(strategy).program.hash, hashes.back());
    hashes.push_back(ThreeUnits(strategy, Tie).program.hash);
    hashes.push_back(CompiledEvaluation(SmallSpec(strategy)).program.hash);
  }
  std::sort(hashes.begin(), hashes.end());
  EXPECT_EQ(std::unique(hashes.begin(), hashes.end()), hashes.end());
}

}  // namespace
}  // namespace fsdpd
