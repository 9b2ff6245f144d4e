#include "fsdp/plan/verify/verify_stages.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "fsdp/plan/model/describe_model.h"
#include "fsdp/plan/model/stage_partition.h"
#include "fsdp/plan/program/testing/program_cases.h"
#include "fsdp/plan/program/testing/program_edits.h"
#include "fsdp/plan/verify/testing/rehearsal.h"
#include "fsdp/plan/verify/verify.h"

namespace fsdpd {
namespace {

struct Staged {
  Spec spec;
  std::vector<Layout> layouts;
  std::vector<Program> programs;
  std::vector<Program> evaluations;
  bool load_kernels = true;  // Interleaved stages do not support it.

  absl::Status Verify() const { return VerifyOf(programs); }
  absl::Status VerifyOf(const std::vector<Program>& of) const {
    std::vector<StageProgram> stages;
    for (size_t s = 0; s < of.size(); ++s) stages.push_back({&of[s], &layouts[s]});
    return VerifyStages(stages, load_kernels);
  }
  int Find(int stage, Op op, int micro_batch) const {
    const std::vector<Instruction>& all = programs[stage].instructions;
    const auto found = std::find_if(all.begin(), all.end(), [&](const Instruction& i) {
      return i.op == op && i.micro_batch == micro_batch;
    });
    EXPECT_NE(found, all.end()) << NameOf(op) << " " << micro_batch;
    return static_cast<int>(found - all.begin());
  }
  Instruction& At(int stage, Op op, int micro_batch) {
    return programs[stage].instructions[Find(stage, op, micro_batch)];
  }
};

// Embedding, four layers, head; two ranks per stage.
Staged Compile(Strategy strategy, int stages, int micro_batches,
               const std::function<void(Spec*)>& change = nullptr, int chunks = 1) {
  Staged staged;
  staged.load_kernels = chunks == 1;
  Spec& spec = staged.spec = PresetSpec("tiny", 2 * stages, 1);
  std::get<LlamaConfig>(spec.model).layers = std::max(4, stages * chunks);
  spec.precision.compute = DType::kFp32;
  spec.strategy = strategy;
  spec.mesh = spec.mesh.WithPipeline(stages);
  spec.global_batch = 2 * micro_batches;
  spec.stage_units = BalancedRuns(DescribeSpec(spec), static_cast<int64_t>(stages) * chunks);
  if (change) change(&spec);
  for (const ModelFacts& model : StagesOf(spec)) {
    staged.layouts.push_back(MakeLayout(model, LayoutOptionsOf(spec)));
    staged.programs.push_back(CompileProgram(spec, model, staged.layouts.back()));
    staged.evaluations.push_back(
        CompileEvaluation(spec, model, staged.layouts.back(), staged.programs.back()));
  }
  return staged;
}

constexpr Strategy kStrategies[] = {Strategy::kNoShard, Strategy::kOptim, Strategy::kOptimGrads,
                                    Strategy::kOptimGradsParams};

void ExpectSameAtAnySpeed(const Staged& staged) {
  for (size_t s = 0; s < staged.programs.size(); ++s) {
    const Outcome right = RunReference(staged.layouts[s], staged.spec, ProgramKind::kTraining, 3);
    for (uint32_t seed = 0; seed < 20; ++seed)
      EXPECT_TRUE(Rehearse(staged.programs[s], staged.layouts[s], staged.spec, 3, seed) == right)
          << "stage " << s << " seed " << seed;
  }
}

TEST(VerifyStages, AcceptsEveryNumberOfStagesAndMicroBatches) {
  for (const Strategy strategy : kStrategies) {
    for (const int stages : {2, 3, 4, 6}) {
      for (const int micro_batches : {1, 2, 3, 4, 7}) {
        const Staged staged = Compile(strategy, stages, micro_batches, Save);
        for (int s = 0; s < stages; ++s) {
          EXPECT_EQ(Verify(staged.programs[s], staged.layouts[s], staged.spec), absl::OkStatus());
          EXPECT_EQ(Verify(staged.evaluations[s], staged.layouts[s], staged.spec), absl::OkStatus());
        }
        EXPECT_EQ(staged.Verify(), absl::OkStatus())
            << NameOf(strategy) << " " << stages << " " << micro_batches;
        EXPECT_EQ(staged.VerifyOf(staged.evaluations), absl::OkStatus());
      }
    }
  }
}

TEST(VerifyStages, AcceptsInterleavedStages) {
  for (const Strategy strategy : kStrategies) {
    for (const int stages : {2, 3, 4}) {
      for (const int runs : {2, 3}) {
        for (const int micro_batches : {stages, 2 * stages, 3 * stages}) {
          const Staged staged = Compile(strategy, stages, micro_batches, Save, runs);
          for (int s = 0; s < stages; ++s) {
            EXPECT_EQ(Verify(staged.programs[s], staged.layouts[s], staged.spec), absl::OkStatus());
            EXPECT_EQ(Verify(staged.evaluations[s], staged.layouts[s], staged.spec), absl::OkStatus());
          }
          EXPECT_EQ(staged.Verify(), absl::OkStatus())
              << NameOf(strategy) << " " << stages << " of " << runs << ", " << micro_batches;
          EXPECT_EQ(staged.VerifyOf(staged.evaluations), absl::OkStatus());
        }
      }
    }
  }
}

void DeferredPasses(Spec* spec) { spec->zero_bubble = true; }

constexpr Strategy kWholeGrads[] = {Strategy::kNoShard, Strategy::kOptim};

TEST(VerifyStages, AcceptsZeroBubbleStages) {
  for (const Strategy strategy : kWholeGrads) {
    for (const int stages : {2, 3, 4, 6}) {
      for (const int micro_batches : {1, 2, 3, 4, 7}) {
        const Staged staged = Compile(strategy, stages, micro_batches, DeferredPasses);
        for (int s = 0; s < stages; ++s) {
          EXPECT_EQ(Verify(staged.programs[s], staged.layouts[s], staged.spec), absl::OkStatus());
          EXPECT_EQ(Verify(staged.evaluations[s], staged.layouts[s], staged.spec), absl::OkStatus());
        }
        EXPECT_EQ(staged.Verify(), absl::OkStatus())
            << NameOf(strategy) << " " << stages << " " << micro_batches;
        if (stages == 3) ExpectSameAtAnySpeed(staged);
      }
    }
  }
}

// The first stage computes them immediately, each later stage one micro-batch later than the previous one.
TEST(VerifyStages, DefersOneMicroBatchPerEarlierStage) {
  const Staged staged = Compile(Strategy::kOptim, 4, 8, DeferredPasses);
  for (int s = 0; s < 3; ++s) {
    int back = 0, whole = 0, most = 0;
    for (const Instruction& i : staged.programs[s].instructions) {
      if (i.unit != 0) continue;
      back += i.op == Op::kBackward;
      whole += i.op == Op::kBackwardWeights;
      most = std::max(most, back - whole);
    }
    EXPECT_EQ(most, s + 1);
    EXPECT_EQ(whole, 8);
  }
}

TEST(VerifyStages, ResultIsIndependentOfLaneSpeed) {
  for (const Strategy strategy : {Strategy::kNoShard, Strategy::kOptimGradsParams}) {
    for (const int runs : {1, 2}) ExpectSameAtAnySpeed(Compile(strategy, 3, 6, nullptr, runs));
  }
}

void Tie(Spec* spec) { std::get<LlamaConfig>(spec->model).tied_embeddings = true; }

TEST(VerifyStages, AcceptsTiedEmbeddingsOverTwoStages) {
  for (const Strategy strategy : kStrategies) {
    for (const int stages : {2, 3}) {
      for (const int runs : {1, 2}) {
        const Staged staged = Compile(strategy, stages, 2 * stages, Tie, runs);
        for (int s = 0; s < stages; ++s)
          EXPECT_EQ(Verify(staged.programs[s], staged.layouts[s], staged.spec), absl::OkStatus());
        EXPECT_EQ(staged.Verify(), absl::OkStatus()) << NameOf(strategy) << " " << stages << " of " << runs;
        EXPECT_EQ(staged.VerifyOf(staged.evaluations), absl::OkStatus());
        ExpectSameAtAnySpeed(staged);
      }
    }
  }
}

TEST(VerifyStages, KeepsOneMicroBatchPerLaterStage) {
  const Staged staged = Compile(Strategy::kOptimGrads, 3, 7);
  for (int s = 0; s < 3; ++s) {
    int now = 0, most = 0;
    for (const Instruction& i : staged.programs[s].instructions) {
      const bool passes = i.op == Op::kForward || i.op == Op::kBackward || i.op == Op::kForwardBackward;
      if (!passes || i.unit != 0) continue;
      now += i.op != Op::kBackward;
      most = std::max(most, now);
      now -= i.op != Op::kForward;
    }
    EXPECT_EQ(most, 3 - s);
  }
}

void ExpectBroken(const absl::Status& status, const std::string& rule, const std::string& names) {
  EXPECT_NE(status.message().find("rule " + rule + ":"), std::string::npos) << status;
  EXPECT_NE(status.message().find(names), std::string::npos) << status;
}

TEST(VerifyStages, RejectsMissingSend) {
  Staged staged = Compile(Strategy::kOptimGrads, 2, 3);
  RemoveInstruction(&staged.programs[0], staged.Find(0, Op::kSend, 1));
  ExpectBroken(staged.Verify(), "13", "stage 0's");
  ExpectBroken(Verify(staged.programs[0], staged.layouts[0], staged.spec), "10", "lacks Send");
  staged = Compile(Strategy::kOptimGrads, 2, 3);
  RemoveInstruction(&staged.programs[1], staged.Find(1, Op::kSendGrad, 2));
  ExpectBroken(staged.Verify(), "13", "there is no send for stage 0's");
}

TEST(VerifyStages, RejectsMissingReceive) {
  Staged staged = Compile(Strategy::kOptimGrads, 2, 3);
  RemoveInstruction(&staged.programs[1], staged.Find(1, Op::kReceive, 2));
  ExpectBroken(staged.Verify(), "13", "is never received");
  ExpectBroken(Verify(staged.programs[1], staged.layouts[1], staged.spec), "10", "precedes its Receive");
}

TEST(VerifyStages, RejectsOtherOrder) {
  Staged staged = Compile(Strategy::kOptimGrads, 2, 3);
  std::swap(staged.At(0, Op::kSend, 0).micro_batch, staged.At(0, Op::kSend, 2).micro_batch);
  ExpectBroken(staged.Verify(), "13", "meets stage 1's");
}

TEST(VerifyStages, RejectsOtherSize) {
  Staged staged = Compile(Strategy::kOptimGrads, 3, 2);
  staged.layouts[1].stage.hidden_elements += 1;
  ExpectBroken(staged.Verify(), "13", "and stage 1's");
  staged = Compile(Strategy::kOptimGrads, 3, 2);
  staged.layouts[2].stage.hidden_type = DType::kBf16;
  ExpectBroken(staged.Verify(), "13", "expects");
}

TEST(VerifyStages, RejectsCollectiveWithoutAllStages) {
  Staged staged = Compile(Strategy::kOptimGrads, 2, 2);
  RemoveInstruction(&staged.programs[1], staged.Find(1, Op::kNorm, -1));
  ExpectBroken(staged.Verify(), "13", "collective over all ranks");
}

TEST(VerifyStages, RejectsDeferredGradientsNeverComputed) {
  Staged staged = Compile(Strategy::kOptim, 3, 3, DeferredPasses);
  for (const int micro_batch : {0, 2}) {
    Staged broken = staged;
    RemoveInstruction(&broken.programs[1], broken.Find(1, Op::kBackwardWeights, micro_batch));
    EXPECT_FALSE(Verify(broken.programs[1], broken.layouts[1], broken.spec).ok()) << micro_batch;
  }
  Staged early = staged;
  early.At(1, Op::kBackwardWeights, 0).micro_batch = 2;
  ExpectBroken(Verify(early.programs[1], early.layouts[1], early.spec), "4", "no deferred weight gradients");
  Staged sets = staged;
  sets.At(1, Op::kBackwardWeights, 1).accumulate = false;
  ExpectBroken(Verify(sets.programs[1], sets.layouts[1], sets.spec), "5", "overwrites instead of adding to");
  Staged now = staged;
  now.At(1, Op::kBackward, 1).defers_grads = false;
  ExpectBroken(Verify(now.programs[1], now.layouts[1], now.spec), "4", "does not defer");
}

// Each deferred micro-batch holds memory.
TEST(VerifyStages, RejectsTooManyDeferredGradients) {
  const Staged staged = Compile(Strategy::kOptim, 4, 6, DeferredPasses);
  Layout layout = staged.layouts[2];
  layout.stage.number = 1;
  ExpectBroken(Verify(staged.programs[2], layout, staged.spec), "4", "begins with 2 micro-batches deferred");
}

// Moves stage 0's Receive of the first gradient before the instruction at `index`.
void ReceiveEarly(Staged* staged, int index) {
  Program& program = staged->programs[0];
  const int old = staged->Find(0, Op::kReceiveGrad, 0);
  const Instruction receive = program.instructions[old];
  RemoveInstruction(&program, old);
  InsertInstruction(&program, index, receive);
  Instruction& back = staged->At(0, Op::kBackward, 0);
  back.after.insert(back.after.begin(), index);
}

// Each program by itself verifies.
TEST(VerifyStages, RejectsDeadlock) {
  Staged staged = Compile(Strategy::kOptimGrads, 3, 2);
  const int send = staged.Find(0, Op::kSend, 0);
  ReceiveEarly(&staged, send);
  Instruction& sends = staged.At(0, Op::kSend, 0);
  sends.after.insert(sends.after.begin(), send);
  std::sort(sends.after.begin(), sends.after.end());
  for (const bool load_kernels : {false, true}) {
    staged.load_kernels = load_kernels;
    ExpectBroken(staged.Verify(), "14", "deadlock: ");
  }
}

// A kernel of the second micro-batch, launched for the first time, waits for the Receive, and the next stage
// waits for that kernel's output.
TEST(VerifyStages, RejectsReceiveBeforeLazyKernelLoad) {
  Staged staged = Compile(Strategy::kOptimGrads, 2, 2);
  EXPECT_EQ(staged.Verify(), absl::OkStatus());
  ReceiveEarly(&staged, staged.Find(0, Op::kForward, 0));
  ExpectBroken(staged.Verify(), "14", "deadlock: ");
  staged.load_kernels = false;
  EXPECT_EQ(staged.Verify(), absl::OkStatus());
}

// A rank whose compute waits in list order and sends afterwards blocks the next stage forever.
TEST(VerifyStages, RejectsLateSend) {
  Staged staged = Compile(Strategy::kOptimGrads, 2, 1);
  Program& program = staged.programs[0];
  const Instruction send = staged.At(0, Op::kSend, 0);
  const int needs = send.after.front();
  RemoveInstruction(&program, staged.Find(0, Op::kSend, 0));
  const auto last = std::find_if(program.instructions.rbegin(), program.instructions.rend(),
                                 [](const Instruction& i) { return i.op == Op::kBackward; });
  Instruction late = send;
  late.after = {needs};
  InsertInstruction(&program, static_cast<int>(program.instructions.rend() - last), late);
  ExpectBroken(staged.Verify(), "14", "deadlock: ");
}

TEST(VerifyStages, RejectsTooManyMicroBatchesInFlight) {
  Staged staged = Compile(Strategy::kOptimGrads, 3, 4);
  staged.layouts[0].stage.count = 2;
  ExpectBroken(Verify(staged.programs[0], staged.layouts[0], staged.spec), "4", "is expected");
}

TEST(VerifyStages, RejectsUnsummedTiedGradients) {
  Staged staged = Compile(Strategy::kOptim, 2, 2, Tie);
  RemoveInstruction(&staged.programs[1], staged.Find(1, Op::kSendTiedGrad, -1));
  ExpectBroken(staged.Verify(), "13", "there is no send for stage 0's");
  EXPECT_FALSE(Verify(staged.programs[1], staged.layouts[1], staged.spec).ok());
  staged = Compile(Strategy::kOptim, 2, 2, Tie);
  RemoveInstruction(&staged.programs[1], staged.Find(1, Op::kReceiveTiedGrad, -1));
  staged.At(1, Op::kNorm, -1).after.push_back(staged.Find(1, Op::kSendTiedGrad, -1));
  ExpectBroken(Verify(staged.programs[1], staged.layouts[1], staged.spec), "5", "summed over its stages");
  staged = Compile(Strategy::kOptim, 2, 2, Tie);
  staged.At(0, Op::kReceiveTiedGrad, -1).accumulate = false;
  EXPECT_FALSE(Verify(staged.programs[0], staged.layouts[0], staged.spec).ok());
}

TEST(VerifyStages, RejectsTiedGradientSentBeforeSum) {
  Staged staged = Compile(Strategy::kOptim, 2, 2, Tie);
  Instruction& sum = staged.At(0, Op::kSendTiedGrad, -1);
  ASSERT_FALSE(sum.after.empty());
  sum.after.clear();
  ExpectBroken(Verify(staged.programs[0], staged.layouts[0], staged.spec), "5", "the gradient shard of");
}

TEST(VerifyStages, RejectsReceiveIntoOccupiedSlot) {
  Staged staged = Compile(Strategy::kOptimGrads, 3, 6);
  Instruction& third = staged.At(2, Op::kReceive, 2);
  ASSERT_FALSE(third.after.empty());
  third.after.clear();
  ExpectBroken(Verify(staged.programs[2], staged.layouts[2], staged.spec), "10", "the stage transfers");
}

TEST(VerifyStages, RejectsOutputIntoOccupiedSlot) {
  Staged staged = Compile(Strategy::kOptimGrads, 2, 6);
  Program& program = staged.programs[0];
  const int first = staged.Find(0, Op::kSend, 0);
  int waits = 0;
  for (Instruction& i : program.instructions) {
    const auto send = std::find(i.after.begin(), i.after.end(), first);
    if (i.op != Op::kForward || send == i.after.end()) continue;
    i.after.erase(send);
    ++waits;
  }
  ASSERT_EQ(waits, 1);
  ExpectBroken(Verify(program, staged.layouts[0], staged.spec), "10", "the stage transfers");
}

// Same kind and micro-batch, another run of the stage.
TEST(VerifyStages, RejectsTransferToOtherRun) {
  Staged staged = Compile(Strategy::kOptimGrads, 2, 2, nullptr, 2);
  std::vector<Instruction*> receives;
  for (Instruction& i : staged.programs[1].instructions) {
    if (i.op == Op::kReceive && i.micro_batch == 0) receives.push_back(&i);
  }
  ASSERT_EQ(receives.size(), 2u);
  std::swap(receives[0]->unit, receives[1]->unit);
  ExpectBroken(staged.Verify(), "13", "meets stage 1's");
}

TEST(VerifyStages, RejectsStagesOfOtherPartition) {
  Staged staged = Compile(Strategy::kOptimGrads, 3, 2);
  staged.layouts.pop_back();
  staged.programs.pop_back();
  ExpectBroken(staged.Verify(), "13", "is compiled as stage 0 of 3");
}

}  // namespace
}  // namespace fsdpd
