#include "fsdp/plan/verify/verify.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "fsdp/plan/model/describe_model.h"
#include "fsdp/plan/program/testing/program_edits.h"

namespace fsdpd {
namespace {

struct Compiled {
  Spec spec;
  ModelFacts model;
  Layout layout;
  Program program;
};

using Hurt = std::function<void(Compiled*)>;
using Change = std::function<void(Spec*)>;

constexpr Strategy kSharded = Strategy::kOptimGradsParams;

// Embedding (unit 0), three layers, head (unit 4); two micro-batches on two ranks.
Spec SmallSpec(Strategy strategy) {
  Spec spec;
  LlamaConfig llama;
  llama.vocab_size = 64;
  llama.hidden_size = 32;
  llama.intermediate_size = 48;
  llama.layers = 3;
  llama.heads = 4;
  llama.kv_heads = 2;
  llama.head_size = 8;
  spec.model = llama;
  spec.data.sequence_length = 8;
  spec.data.synthetic_vocab = 64;
  spec.steps = 1;
  spec.mesh = Mesh::DataParallel(1, 2);
  spec.global_batch = 4;
  spec.strategy = strategy;
  spec.prefetch_bytes = 1 << 14;
  return spec;
}

void Hfsdp(Spec* spec) {
  spec->mesh = Mesh::DataParallel(1, 4);
  spec->global_batch = 8;
  spec->mesh = spec->mesh.WithReplicas(2);
  spec->outer_strategy = Strategy::kOptim;
}

void Tie(Spec* spec) { std::get<LlamaConfig>(spec->model).tied_embeddings = true; }

void FreezeEmbedding(Spec* spec) { spec->frozen = {"embedding.*"}; }

void Offload(Spec* spec) { spec->offload_optimizer = true; }

void Save(Spec* spec) {
  spec->checkpoint.dir = "/runs/1";
  spec->checkpoint.every_steps = 5;
}

void SaveFrozen(Spec* spec) {
  Save(spec);
  FreezeEmbedding(spec);
}

void WireInBf16(Spec* spec) { spec->precision.compute = spec->precision.grad_comm = DType::kBf16; }

Compiled Compile(Strategy strategy, const Change& change) {
  Compiled c;
  c.spec = SmallSpec(strategy);
  if (change) change(&c.spec);
  c.model = DescribeSpec(c.spec);
  c.layout = MakeLayout(c.model, LayoutOptionsOf(c.spec));
  c.program = CompileProgram(c.spec, c.model, c.layout);
  return c;
}

Compiled CompileEvaluation(Strategy strategy, const Change& change) {
  Compiled c = Compile(strategy, change);
  c.program = fsdpd::CompileEvaluation(c.spec, c.model, c.layout, c.program);
  return c;
}

int Find(const Program& program, Op op, int unit, int micro_batch = -1) {
  for (size_t i = 0; i < program.instructions.size(); ++i) {
    const Instruction& at = program.instructions[i];
    if (at.op == op && at.unit == unit && (micro_batch < 0 || at.micro_batch == micro_batch)) {
      return static_cast<int>(i);
    }
  }
  ADD_FAILURE() << "no " << NameOf(op) << " of unit " << unit;
  return 0;
}

Instruction& At(Compiled* c, Op op, int unit, int micro_batch = -1) {
  return c->program.instructions[Find(c->program, op, unit, micro_batch)];
}

Buffer& BufferOf(Compiled* c, BufferKind kind, int unit) {
  for (Buffer& buffer : c->program.buffers) {
    if (buffer.kind == kind && c->layout.buckets[buffer.bucket].unit == unit) return buffer;
  }
  ADD_FAILURE() << "no " << NameOf(kind) << " buffer of unit " << unit;
  return c->program.buffers[0];
}

void ExpectBroken(const Compiled& c, const std::string& rule, const std::string& names) {
  const absl::Status status = Verify(c.program, c.layout, c.spec);
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  const std::string message(status.message());
  EXPECT_NE(message.find("rule " + rule + ":"), std::string::npos) << message;
  EXPECT_NE(message.find(names), std::string::npos) << message;
}

// Breaks a valid program and expects an error that names the rule and the instruction.
void ExpectCaught(Strategy strategy, const Change& change, const std::string& rule, const std::string& names,
                  const Hurt& hurt) {
  Compiled c = Compile(strategy, change);
  ASSERT_TRUE(Verify(c.program, c.layout, c.spec).ok()) << Verify(c.program, c.layout, c.spec);
  hurt(&c);
  ExpectBroken(c, rule, names);
}

void ExpectCaught(const std::string& rule, const std::string& names, const Hurt& hurt) {
  ExpectCaught(kSharded, nullptr, rule, names, hurt);
}

TEST(Verify, Rule1RejectsForwardDependency) {
  ExpectCaught("1", "#1 ", [](Compiled* c) { c->program.instructions[1].after.push_back(5); });
}

TEST(Verify, Rule1RejectsSelfDependency) {
  ExpectCaught("1", "#1 ", [](Compiled* c) { c->program.instructions[1].after.push_back(1); });
}

TEST(Verify, Rule1RejectsSameLaneDependency) {
  ExpectCaught("1", "Release embedding", [](Compiled* c) {
    At(c, Op::kRelease, 0).after.push_back(Find(c->program, Op::kForward, 0, 0));
  });
}

TEST(Verify, Rule1RejectsUnknownPreviousInstruction) {
  ExpectCaught("1", "#0 ", [](Compiled* c) {
    c->program.instructions[0].after_previous.push_back(static_cast<int>(c->program.instructions.size()));
  });
}

TEST(Verify, Rule4RejectsUnknownLane) {
  ExpectCaught("4", "Norm", [](Compiled* c) { At(c, Op::kNorm, -1).lane = static_cast<LaneId>(kLanes); });
  ExpectCaught("4", "over shard instead of world",
               [](Compiled* c) { At(c, Op::kNorm, -1).group = Group::kShard; });
  ExpectCaught("4", "over self instead of shard",
               [](Compiled* c) { At(c, Op::kGather, 0).group = Group::kSelf; });
  ExpectCaught("4", "communicator for reduce instead of gather",
               [](Compiled* c) { At(c, Op::kGather, 0).role = Role::kReduce; });
}

TEST(Verify, Rule2RejectsForwardBeforeGather) {
  ExpectCaught("2", "Forward layer.0 mb 0", [](Compiled* c) { At(c, Op::kForward, 1, 0).after.clear(); });
}

TEST(Verify, Rule2RejectsGatherIntoBytesInUse) {
  // Each unit is gathered again without waiting for its first use.
  ExpectCaught("2", "Gather", [](Compiled* c) {
    for (Instruction& at : c->program.instructions) {
      if (at.op == Op::kGather) at.after.clear();
    }
  });
}

TEST(Verify, Rule2RejectsUseAfterRelease) {
  ExpectCaught("2", "Forward layer.0 mb 0", [](Compiled* c) {
    Instruction& forward = At(c, Op::kForward, 1, 0);
    Instruction& release = At(c, Op::kRelease, 1);
    ASSERT_EQ(&forward + 1, &release);
    release.after = forward.after;
    std::swap(forward, release);
  });
}

TEST(Verify, Rule2RejectsUndeclaredUse) {
  ExpectCaught("2", "Backward layer.1 mb 1", [](Compiled* c) { At(c, Op::kBackward, 2, 1).uses.pop_back(); });
}

TEST(Verify, Rule2RejectsUnknownBuffer) {
  ExpectCaught("2", "Forward layer.1 mb 0", [](Compiled* c) {
    At(c, Op::kForward, 2, 0).uses.push_back({99, Access::kRead});
  });
}

TEST(Verify, Rule2RejectsLifetimeEndingBeforeLastUse) {
  ExpectCaught("2", "outside of its lifetime",
               [](Compiled* c) { BufferOf(c, BufferKind::kReduce, 2).live[1].dies--; });
}

TEST(Verify, Rule2RejectsInvalidLifetimes) {
  ExpectCaught("2", "gathered buffer of layer.0", [](Compiled* c) {
    std::swap(BufferOf(c, BufferKind::kGathered, 1).live[0], BufferOf(c, BufferKind::kGathered, 1).live[1]);
  });
}

TEST(Verify, Rule2RejectsGatherBeforePublish) {
  ExpectCaught(kSharded, Hfsdp, "2", "Gather embedding",
               [](Compiled* c) { At(c, Op::kGather, 0).after.clear(); });
}

TEST(Verify, Rule2RejectsOverlappingWireUse) {
  ExpectCaught(kSharded, WireInBf16, "2", "wire buffer of layer.0", [](Compiled* c) {
    Instruction& reduce = At(c, Op::kReduce, 1, 0);
    const auto wire = std::find_if(reduce.uses.begin(), reduce.uses.end(), [&](const BufferUse& use) {
      return c->program.buffers[use.buffer].kind == BufferKind::kWire;
    });
    ASSERT_NE(wire, reduce.uses.end());
    reduce.uses.erase(wire);
  });
}

TEST(Verify, Rule3RejectsWireBufferWithoutSums) {
  ExpectCaught(kSharded, WireInBf16, "3", "wire buffer of layer.0", [](Compiled* c) {
    const int64_t sums = SumBytes(c->spec, c->layout.buckets[1]);
    ASSERT_GT(sums, 0);
    BufferOf(c, BufferKind::kWire, 1).bytes -= sums;
  });
}

TEST(Verify, Rule3RejectsOverlappingLiveBuffers) {
  const auto cast = [](Spec* spec) { spec->precision.compute = DType::kBf16; };
  ExpectCaught(Strategy::kNoShard, cast, "3", "gathered buffer of", [](Compiled* c) {
    BufferOf(c, BufferKind::kGathered, 2).offset = BufferOf(c, BufferKind::kGathered, 1).offset;
  });
}

TEST(Verify, Rule3RejectsReduceBufferOverwrite) {
  ExpectCaught("3", "reduce buffer of", [](Compiled* c) {
    // All gradients share bytes, as if no Reduce overlapped the next Backward.
    for (int unit : {2, 3}) {
      BufferOf(c, BufferKind::kReduce, unit).offset = BufferOf(c, BufferKind::kReduce, 1).offset;
    }
  });
}

TEST(Verify, Rule3RejectsBytesUsedByPreviousStep) {
  Compiled c = Compile(kSharded, nullptr);
  int caught = 0;
  for (size_t i = 0; i < c.program.instructions.size(); ++i) {
    if (c.program.instructions[i].after_previous.empty()) continue;
    Program hurt = c.program;
    hurt.instructions[i].after_previous.clear();
    const absl::Status status = Verify(hurt, c.layout, c.spec);
    if (status.ok()) continue;
    ++caught;
    EXPECT_NE(std::string(status.message()).find("of the step after"), std::string::npos) << status;
  }
  EXPECT_GT(caught, 0);
}

TEST(Verify, Rule3RejectsBufferOutsideArena) {
  ExpectCaught("3", "leaves the arena", [](Compiled* c) {
    c->program.arena_bytes -= 256;
    c->program.live_peak_bytes = 0;
  });
  ExpectCaught("3", "not aligned", [](Compiled* c) { c->program.buffers[1].offset += 4; });
}

TEST(Verify, Rule3RejectsTooSmallBuffer) {
  ExpectCaught("3", "gathered buffer of embedding", [](Compiled* c) { c->program.buffers[0].bytes -= 1; });
}

TEST(Verify, Rule3RejectsMissingDuplicateOrUnusedBuffers) {
  ExpectCaught("3", "is duplicated",
               [](Compiled* c) { c->program.buffers.push_back(BufferOf(c, BufferKind::kReduce, 1)); });
  ExpectCaught("3", "is missing", [](Compiled* c) { c->program.buffers.clear(); });
  ExpectCaught(kSharded, FreezeEmbedding, "3", "reduce buffer of embedding is unused", [](Compiled* c) {
    c->program.buffers.push_back(BufferOf(c, BufferKind::kGathered, 0));
    c->program.buffers.back().kind = BufferKind::kReduce;
  });
}

TEST(Verify, Rule4RejectsMissingForward) {
  ExpectCaught(Strategy::kNoShard, nullptr, "4", "where Forward layer.1 mb 1 is expected",
               [](Compiled* c) { RemoveInstruction(&c->program, Find(c->program, Op::kForward, 2, 1)); });
}

TEST(Verify, Rule4RejectsRepeatedForward) {
  ExpectCaught("4", "Forward layer.1 mb 0", [](Compiled* c) { At(c, Op::kForward, 2, 1).micro_batch = 0; });
}

TEST(Verify, Rule4RejectsForwardsOutOfOrder) {
  ExpectCaught(Strategy::kOptim, nullptr, "4", "Forward layer.1 mb 1",
               [](Compiled* c) { std::swap(At(c, Op::kForward, 1, 1), At(c, Op::kForward, 2, 1)); });
}

TEST(Verify, Rule4RejectsWrongLane) {
  ExpectCaught(Strategy::kNoShard, nullptr, "4", "Update embedding",
               [](Compiled* c) { At(c, Op::kUpdate, 0).lane = LaneId::kGather; });
}

TEST(Verify, Rule4RejectsUnknownOperands) {
  ExpectCaught("4", "names unit 5 of 5", [](Compiled* c) { At(c, Op::kRelease, 3).unit = 5; });
  ExpectCaught("4", "names bucket 3, which is not its unit's",
               [](Compiled* c) { At(c, Op::kGather, 1).bucket = 3; });
  ExpectCaught("4", "names micro-batch 2 of 2",
               [](Compiled* c) { At(c, Op::kBackward, 1, 1).micro_batch = 2; });
}

TEST(Verify, Rule4RejectsRecomputeMismatch) {
  const auto full = [](Spec* spec) {
    spec->recompute = Recompute::kFull;
    spec->recompute_layers = 3;
  };
  ExpectCaught(kSharded, full, "4", "Backward layer.1 mb 1",
               [](Compiled* c) { At(c, Op::kBackward, 2, 1).recompute = Recompute::kNone; });
  ExpectCaught("4", "Forward layer.1 mb 0",
               [](Compiled* c) { At(c, Op::kForward, 2, 0).recompute = Recompute::kFull; });
  ExpectCaught("4", "recomputes its own forward",
               [](Compiled* c) { At(c, Op::kForwardBackward, 4, 0).recompute = Recompute::kFull; });
}

TEST(Verify, Rule4RejectsSplitLastUnit) {
  ExpectCaught("4", "where ForwardBackward head mb 0 is expected",
               [](Compiled* c) { At(c, Op::kForwardBackward, 4, 0).op = Op::kForward; });
}

TEST(Verify, Rule4RejectsBorrowerWithoutLender) {
  ExpectCaught(kSharded, Tie, "2", "ForwardBackward head", [](Compiled* c) {
    Instruction& both = At(c, Op::kForwardBackward, 4, 0);
    const int lent = c->layout.units[0].buckets[0];
    both.uses.erase(
        std::remove_if(both.uses.begin(), both.uses.end(),
                       [&](const BufferUse& use) { return c->program.buffers[use.buffer].bucket == lent; }),
        both.uses.end());
  });
  ExpectCaught(Strategy::kOptim, Tie, "4", "ForwardBackward head mb 0 on compute", [](Compiled* c) {
    Instruction release;
    release.op = Op::kRelease;
    release.unit = 0;
    InsertInstruction(&c->program, Find(c->program, Op::kForwardBackward, 4, 0), release);
  });
}

TEST(Verify, Rule4RejectsRedundantGather) {
  for (const Strategy strategy : {Strategy::kOptim, kSharded}) {
    ExpectCaught(strategy, nullptr, "4", "Gather layer.0", [](Compiled* c) {
      const int gather = Find(c->program, Op::kGather, 1);
      const Instruction again = c->program.instructions[gather];
      InsertInstruction(&c->program, gather, again);
      for (Buffer::Interval& live : BufferOf(c, BufferKind::kGathered, 1).live) {
        if (live.born == gather + 1) live.born = gather;
      }
      c->program.live_peak_bytes = c->program.arena_bytes;
    });
  }
}

TEST(Verify, Rule4RejectsMissingOrDoubleRelease) {
  ExpectCaught("2", "Release layer.0 is missing", [](Compiled* c) {
    int last = 0;
    for (size_t i = 0; i < c->program.instructions.size(); ++i) {
      const Instruction& at = c->program.instructions[i];
      if (at.op == Op::kRelease && at.unit == 1) last = static_cast<int>(i);
    }
    RemoveInstruction(&c->program, last);
  });
  ExpectCaught("2", "Release layer.0", [](Compiled* c) {
    const int release = Find(c->program, Op::kRelease, 1);
    const Instruction again = c->program.instructions[release];
    InsertInstruction(&c->program, release, again);
  });
}

TEST(Verify, Rule5RejectsFirstReduceThatAdds) {
  ExpectCaught("5", "Reduce layer.2 mb 0", [](Compiled* c) { At(c, Op::kReduce, 3, 0).accumulate = true; });
}

TEST(Verify, Rule5RejectsLaterReduceThatSets) {
  ExpectCaught("5", "Reduce layer.2 mb 1", [](Compiled* c) { At(c, Op::kReduce, 3, 1).accumulate = false; });
}

TEST(Verify, Rule5RejectsBackwardThatOverwrites) {
  for (const Strategy strategy : {Strategy::kNoShard, Strategy::kOptim}) {
    ExpectCaught(strategy, nullptr, "5", "Backward layer.0 mb 1",
                 [](Compiled* c) { At(c, Op::kBackward, 1, 1).accumulate = false; });
  }
}

TEST(Verify, Rule5RejectsLenderThatOverwrites) {
  ExpectCaught(kSharded, Tie, "5", "Backward embedding mb 0",
               [](Compiled* c) { At(c, Op::kBackward, 0, 0).accumulate = false; });
}

TEST(Verify, Rule5RejectsReduceOfEarlierMicroBatch) {
  ExpectCaught(Strategy::kOptim, nullptr, "5", "Reduce layer.0 mb 0",
               [](Compiled* c) { At(c, Op::kReduce, 1).micro_batch = 0; });
}

TEST(Verify, Rule5RejectsMissingReduce) {
  for (const Strategy strategy : {Strategy::kNoShard, Strategy::kOptim}) {
    ExpectCaught(strategy, nullptr, "5", "lacks Reduce layer.1 mb 1",
                 [](Compiled* c) { RemoveInstruction(&c->program, Find(c->program, Op::kReduce, 2)); });
  }
}

TEST(Verify, Rule5RejectsReduceBeforeBackward) {
  ExpectCaught(Strategy::kOptim, nullptr, "2", "Reduce", [](Compiled* c) {
    for (int unit = 0; unit < 5; ++unit) At(c, Op::kReduce, unit).after.clear();
  });
}

TEST(Verify, Rule5RejectsMissingReduceOuter) {
  for (const Strategy outer : {Strategy::kNoShard, Strategy::kOptim}) {
    const auto two_axes = [outer](Spec* spec) {
      Hfsdp(spec);
      spec->outer_strategy = outer;
    };
    ExpectCaught(kSharded, two_axes, "5", "lacks ReduceOuter layer.1",
                 [](Compiled* c) { RemoveInstruction(&c->program, Find(c->program, Op::kReduceOuter, 2)); });
    ExpectCaught(kSharded, two_axes, "5", "ReduceOuter layer.1",
                 [](Compiled* c) { At(c, Op::kReduceOuter, 2).after.clear(); });
  }
}

TEST(Verify, Rule5RejectsReduceOfFrozenBucket) {
  ExpectCaught(kSharded, FreezeEmbedding, "5", "Reduce embedding mb 1", [](Compiled* c) {
    Instruction& reduce = At(c, Op::kReduce, 1, 1);
    reduce.unit = 0;
    reduce.bucket = c->layout.units[0].buckets[0];
  });
}

TEST(Verify, Rule6RejectsUpdateBeforeNorm) {
  ExpectCaught("6", "Update", [](Compiled* c) {
    // Waits for the last reduction instead, so that its gradient is complete.
    const int norm = Find(c->program, Op::kNorm, -1);
    for (Instruction& at : c->program.instructions) {
      std::replace(at.after.begin(), at.after.end(), norm, norm - 1);
    }
    ASSERT_EQ(c->program.instructions[norm - 1].op, Op::kReduce);
  });
}

TEST(Verify, Rule6RejectsMissingUpdate) {
  ExpectCaught("6", "Update layer.1 is missing",
               [](Compiled* c) { RemoveInstruction(&c->program, Find(c->program, Op::kUpdate, 2)); });
}

TEST(Verify, Rule6RejectsSecondUpdate) {
  ExpectCaught("6", "Update layer.2", [](Compiled* c) {
    Instruction& update = At(c, Op::kUpdate, 2);
    update.unit = 3;
    update.bucket = c->layout.units[3].buckets[0];
  });
}

TEST(Verify, Rule6RejectsUpdateOfFrozenBucket) {
  ExpectCaught(kSharded, FreezeEmbedding, "6", "Update embedding", [](Compiled* c) {
    Instruction& update = At(c, Op::kUpdate, 1);
    update.unit = 0;
    update.bucket = c->layout.units[0].buckets[0];
  });
}

void Balance(Spec* spec) {
  ExpertsConfig& experts = std::get<LlamaConfig>(spec->model).experts;
  experts = {8, 2, 64};
  experts.sigmoid = experts.selection_bias = true;
  experts.bias_update_rate = 0.001;
}

// The last bucket of a layer.
int BiasOf(const Compiled& c, int unit) {
  const int bucket = c.layout.units[unit].buckets.back();
  EXPECT_TRUE(c.layout.buckets[bucket].is_selection_bias());
  return bucket;
}

int FindUpdateOf(const Compiled& c, int bucket) {
  for (size_t i = 0; i < c.program.instructions.size(); ++i) {
    const Instruction& at = c.program.instructions[i];
    if (at.op == Op::kUpdate && at.bucket == bucket) return static_cast<int>(i);
  }
  ADD_FAILURE() << "no Update of bucket " << bucket;
  return 0;
}

TEST(Verify, Rule6RejectsMissingSelectionBiasUpdate) {
  ExpectCaught(kSharded, Balance, "6", "Update layer.1 is missing",
               [](Compiled* c) { RemoveInstruction(&c->program, FindUpdateOf(*c, BiasOf(*c, 2))); });
}

TEST(Verify, Rule6RejectsSelectionBiasWithForeignChoices) {
  ExpectCaught(kSharded, Balance, "6", "out of range or already used",
               [](Compiled* c) { c->layout.buckets[BiasOf(*c, 2)].choices_begin -= 4; });
  ExpectCaught(kSharded, Balance, "6", "out of range or already used",
               [](Compiled* c) { c->layout.choices -= 1; });
}

TEST(Verify, Rule6RejectsTrainedSelectionBias) {
  ExpectCaught(kSharded, Balance, "6", "is not a single selection bias", [](Compiled* c) {
    Bucket& bucket = c->layout.buckets[BiasOf(*c, 2)];
    bucket.trainable = true;
  });
}

TEST(Verify, Rule3RejectsBf16SelectionBias) {
  const auto narrow = [](Spec* spec) {
    Balance(spec);
    WireInBf16(spec);
  };
  ExpectCaught(kSharded, narrow, "3", "gathered", [](Compiled* c) {
    for (Buffer& buffer : c->program.buffers) {
      if (buffer.bucket == BiasOf(*c, 2)) buffer.bytes /= 2;
    }
  });
}

TEST(Verify, Rule6RejectsMissingNorm) {
  ExpectCaught(Strategy::kOptimGrads, nullptr, "6", "Update",
               [](Compiled* c) { RemoveInstruction(&c->program, Find(c->program, Op::kNorm, -1)); });
}

TEST(Verify, Rule6RejectsNormBeforeReduceOuter) {
  ExpectCaught(kSharded, Hfsdp, "5", "Norm", [](Compiled* c) { At(c, Op::kNorm, -1).after.clear(); });
}

TEST(Verify, Rule6RejectsGatherDuringPreviousUpdate) {
  ExpectCaught("6", "of the step after uses the main parameters of", [](Compiled* c) {
    for (Instruction& at : c->program.instructions) at.after_previous.clear();
  });
}

TEST(Verify, Rule6RejectsPublishDuringPreviousUpdate) {
  ExpectCaught(kSharded, Hfsdp, "6", "Publish", [](Compiled* c) {
    for (Instruction& at : c->program.instructions) {
      if (at.op == Op::kGatherReplica) at.after_previous.clear();
    }
  });
}

TEST(Verify, Rule7RejectsArenaOverBudget) {
  ExpectCaught("7", "budget", [](Compiled* c) { c->spec.memory_budget_bytes = c->program.arena_bytes - 1; });
  Compiled c = Compile(kSharded, nullptr);
  c.spec.memory_budget_bytes = c.program.arena_bytes;
  EXPECT_TRUE(Verify(c.program, c.layout, c.spec).ok());
}

TEST(Verify, Rule7RejectsWrongLivePeak) {
  ExpectCaught("7", "live peak", [](Compiled* c) { c->program.live_peak_bytes = 1; });
  ExpectCaught("7", "live peak",
               [](Compiled* c) { c->program.live_peak_bytes = c->program.arena_bytes + 256; });
}

void ExpectCaughtInEvaluation(const Change& change, const std::string& rule, const std::string& names,
                              const Hurt& hurt) {
  Compiled c = CompileEvaluation(kSharded, change);
  ASSERT_TRUE(Verify(c.program, c.layout, c.spec).ok()) << Verify(c.program, c.layout, c.spec);
  hurt(&c);
  ExpectBroken(c, rule, names);
}

TEST(Verify, Rule8RejectsEvaluationThatTrains) {
  ExpectCaughtInEvaluation(nullptr, "8", "Update layer.1", [](Compiled* c) {
    Instruction& release = At(c, Op::kRelease, 2);
    release.op = Op::kUpdate;
    release.bucket = c->layout.units[2].buckets[0];
  });
}

TEST(Verify, Rule8RejectsTrainingStepWithLoss) {
  ExpectCaught("8", "Loss", [](Compiled* c) { At(c, Op::kNorm, -1).op = Op::kLoss; });
}

TEST(Verify, Rule8RejectsEvaluationNotEndingWithLoss) {
  ExpectCaughtInEvaluation(nullptr, "8", "Loss is missing", [](Compiled* c) {
    RemoveInstruction(&c->program, static_cast<int>(c->program.instructions.size()) - 1);
  });
  ExpectCaughtInEvaluation(nullptr, "8", "Loss", [](Compiled* c) {
    c->program.instructions.push_back(c->program.instructions.back());
  });
}

TEST(Verify, Rule8RejectsLossBeforeLastForward) {
  ExpectCaughtInEvaluation(nullptr, "6", "Loss", [](Compiled* c) { At(c, Op::kLoss, -1).after.clear(); });
}

TEST(Verify, Rule8RejectsSnapshotInEvaluation) {
  ExpectCaughtInEvaluation(Save, "8", "Snapshot layer.1", [](Compiled* c) {
    Instruction& release = At(c, Op::kRelease, 2);
    release.op = Op::kSnapshot;
    release.lane = LaneId::kCopy;
    release.bucket = c->layout.units[2].buckets[0];
  });
}

TEST(Verify, Rule9RejectsMissingSnapshot) {
  ExpectCaught(kSharded, Save, "9", "Snapshot layer.1 is missing",
               [](Compiled* c) { RemoveInstruction(&c->program, Find(c->program, Op::kSnapshot, 2)); });
  ExpectCaught(kSharded, SaveFrozen, "9", "Snapshot embedding is missing",
               [](Compiled* c) { RemoveInstruction(&c->program, Find(c->program, Op::kSnapshot, 0)); });
}

TEST(Verify, Rule9RejectsSecondSnapshot) {
  ExpectCaught(kSharded, Save, "9", "Snapshot head", [](Compiled* c) {
    const int at = Find(c->program, Op::kSnapshot, 4);
    InsertInstruction(&c->program, at, Instruction(c->program.instructions[at]));
  });
}

TEST(Verify, Rule9RejectsSnapshotWithoutCheckpoints) {
  ExpectCaught(kSharded, Save, "9", "Snapshot embedding",
               [](Compiled* c) { c->spec.checkpoint.every_steps = 0; });
}

// Ordered with its Update, but before it: copies the parameters of the previous step.
TEST(Verify, Rule9RejectsSnapshotBeforeUpdate) {
  ExpectCaught(kSharded, Save, "9", "precedes its Update", [](Compiled* c) {
    const int old = Find(c->program, Op::kSnapshot, 0);
    Instruction early = c->program.instructions[old];
    RemoveInstruction(&c->program, old);
    const int update = Find(c->program, Op::kUpdate, 0);
    early.after.clear();
    early.after_previous = {update};
    InsertInstruction(&c->program, update, early);
    Instruction& late = c->program.instructions[update + 1];
    ASSERT_EQ(late.op, Op::kUpdate);
    late.after_previous.clear();
    late.after.push_back(update);
    c->program.instructions[update].after_previous = {update + 1};
  });
}

TEST(Verify, Rule11RejectsUnpairedFetchAndOffload) {
  ExpectCaught(kSharded, Offload, "11", "Offload head is missing", [](Compiled* c) {
    RemoveInstruction(&c->program, Find(c->program, Op::kOffload, 4));
    At(c, Op::kFetch, 0).after_previous = {Find(c->program, Op::kOffload, 3),
                                           Find(c->program, Op::kUpdate, 4)};
  });
  ExpectCaught(kSharded, nullptr, "11", "Fetch layer.1", [](Compiled* c) {
    Instruction fetch = At(c, Op::kUpdate, 2);
    fetch.op = Op::kFetch;
    fetch.lane = LaneId::kFetch;
    InsertInstruction(&c->program, Find(c->program, Op::kUpdate, 2), fetch);
  });
}

TEST(Verify, Rule2RejectsUpdateBeforeFetch) {
  ExpectCaught(kSharded, Offload, "2", "Update layer.1",
               [](Compiled* c) { RemoveInstruction(&c->program, Find(c->program, Op::kFetch, 2)); });
}

TEST(Verify, Rule3RejectsFetchBeforePreviousOffload) {
  ExpectCaught(kSharded, Offload, "3", "Fetch layer.0",
               [](Compiled* c) { At(c, Op::kFetch, 0).after_previous.clear(); });
}

TEST(Verify, Rule3RejectsOverlappingState) {
  ExpectCaught(kSharded, Offload, "3", "Fetch layer.1",
               [](Compiled* c) { At(c, Op::kFetch, 2).after.clear(); });
}

TEST(Verify, Rule6RejectsUpdateBeforePreviousSnapshot) {
  ExpectCaught(kSharded, Save, "6", "Update layer.1", [](Compiled* c) {
    ASSERT_EQ(At(c, Op::kUpdate, 2).after_previous.size(), 1u);
    At(c, Op::kUpdate, 2).after_previous.clear();
  });
}

TEST(Verify, Rule6RejectsSnapshotDuringUpdate) {
  ExpectCaught(kSharded, Save, "6", "Snapshot layer.1",
               [](Compiled* c) { At(c, Op::kSnapshot, 2).after.clear(); });
}

TEST(Verify, Rule4RejectsReplicatedNextToPartitionedParameters) {
  ExpectCaught("4", "bucket 1 mixes partitioned and replicated parameters", [](Compiled* c) {
    ASSERT_GT(c->layout.buckets[1].params.size(), 1u);
    c->layout.buckets[1].params[0].partition = {0, 2};
  });
}

TEST(Verify, Rule4RejectsSnapshotOnOtherLane) {
  ExpectCaught(kSharded, Save, "4", "belongs on the copy lane",
               [](Compiled* c) { At(c, Op::kSnapshot, 1).lane = LaneId::kGather; });
  ExpectCaught(kSharded, Save, "4", "over world instead of self",
               [](Compiled* c) { At(c, Op::kSnapshot, 1).group = Group::kWorld; });
  ExpectCaught(kSharded, Save, "4", "names bucket 3, which is not its unit's",
               [](Compiled* c) { At(c, Op::kSnapshot, 1).bucket = 3; });
}

TEST(Verify, Rule8RejectsStaleReplicasInEvaluation) {
  ExpectCaughtInEvaluation(Hfsdp, "2", "Gather layer.1", [](Compiled* c) {
    RemoveInstruction(&c->program, Find(c->program, Op::kGatherReplica, 2));
  });
}

}  // namespace
}  // namespace fsdpd
