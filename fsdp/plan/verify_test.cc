#include "fsdp/plan/verify.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>

namespace fsdpd {
namespace {

struct Compiled {
  Spec spec;
  Layout layout;
  Program program;
};

Spec SmallSpec(Strategy strategy) {
  Spec spec;
  spec.model = {64, 32, 48, 3, 4, 2, 10000, 1e-5};
  spec.data.sequence_length = 8;
  spec.data.synthetic_vocab = 64;
  spec.steps = 1;
  spec.world = 2;
  spec.micro_batch = 1;
  spec.global_batch = 4;  // Two micro-batches.
  spec.strategy = strategy;
  spec.prefetch_bytes = 1 << 14;
  return spec;
}

Compiled Compile(const Spec& spec) {
  const ModelFacts model =
      DescribeLlama(spec.model, spec.micro_batch, spec.data.sequence_length, spec.compute);
  Layout layout = MakeLayout(model, spec.strategy == Strategy::kNoShard ? 1 : spec.world, spec.compute);
  Program program = CompileProgram(spec, layout);
  return {spec, std::move(layout), std::move(program)};
}

int Find(const Program& program, Op op, int unit, int micro_batch = -1) {
  for (size_t i = 0; i < program.instructions.size(); ++i) {
    const Instruction& at = program.instructions[i];
    if (at.op == op && at.unit == unit && (micro_batch < 0 || at.micro_batch == micro_batch)) {
      return static_cast<int>(i);
    }
  }
  return -1;
}

// Breaks a good program and expects the verifier to say which rule and which instruction.
void ExpectCaught(Strategy strategy, const std::function<void(Compiled*)>& hurt, const std::string& rule,
                  const std::string& names) {
  Compiled c = Compile(SmallSpec(strategy));
  ASSERT_TRUE(Verify(c.program, c.layout, c.spec).ok()) << Verify(c.program, c.layout, c.spec);
  hurt(&c);
  const absl::Status status = Verify(c.program, c.layout, c.spec);
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  const std::string message(status.message());
  EXPECT_NE(message.find("rule " + rule + ":"), std::string::npos) << message;
  EXPECT_NE(message.find(names), std::string::npos) << message;
}

constexpr Strategy kSharded = Strategy::kOptimGradsParams;

TEST(Verify, CatchesADependencyOnLaterWork) {
  ExpectCaught(
      kSharded, [](Compiled* c) { c->program.instructions[1].after.push_back(5); }, "1", "#1 ");
}

TEST(Verify, CatchesADependencyOnItsOwnLane) {
  ExpectCaught(
      kSharded,
      [](Compiled* c) {
        const int at = Find(c->program, Op::kRelease, 0);
        c->program.instructions[at].after.push_back(Find(c->program, Op::kForward, 0, 0));
      },
      "1", "Release embedding");
}

TEST(Verify, CatchesAForwardThatDoesNotWaitForItsGather) {
  ExpectCaught(
      kSharded,
      [](Compiled* c) { c->program.instructions[Find(c->program, Op::kForward, 1, 0)].after.clear(); }, "2",
      "Forward layer.0 mb 0");
}

TEST(Verify, CatchesAGatherIntoBytesStillInUse) {
  // The same unit is gathered again while nothing says that its first use is over.
  ExpectCaught(
      kSharded,
      [](Compiled* c) {
        for (Instruction& at : c->program.instructions) {
          if (at.op == Op::kGather) at.after.clear();
        }
      },
      "2", "Gather");
}

TEST(Verify, CatchesAUseAfterRelease) {
  ExpectCaught(
      kSharded,
      [](Compiled* c) {
        const int at = Find(c->program, Op::kForward, 1, 0);
        Instruction& forward = c->program.instructions[at];
        Instruction& release = c->program.instructions[at + 1];
        release.after = forward.after;
        std::swap(forward, release);
        for (Buffer& buffer : c->program.buffers) {
          for (Buffer::Interval& live : buffer.live) {
            if (live.dies == at + 1) live.dies = at;
          }
        }
      },
      "2", "Forward layer.0 mb 0");
}

TEST(Verify, CatchesAnUndeclaredUse) {
  ExpectCaught(
      kSharded,
      [](Compiled* c) { c->program.instructions[Find(c->program, Op::kBackward, 2, 1)].uses.pop_back(); },
      "2", "Backward layer.1 mb 1");
}

TEST(Verify, CatchesTwoLiveBuffersAtOnePlace) {
  ExpectCaught(
      Strategy::kNoShard, [](Compiled* c) { c->program.buffers[2].offset = c->program.buffers[0].offset; },
      "3", "gathered buffer of");
}

TEST(Verify, CatchesAReduceBufferThatIsOverwrittenBeforeItsReduce) {
  ExpectCaught(
      kSharded,
      [](Compiled* c) {
        // All gradients in one place, as if one Reduce were never in flight beside the next Backward.
        int64_t place = -1;
        for (Buffer& buffer : c->program.buffers) {
          if (buffer.kind != BufferKind::kReduce || buffer.unit == 0 || buffer.unit == 4) continue;
          if (place < 0) place = buffer.offset;
          buffer.offset = place;
        }
      },
      "3", "reduce buffer of");
}

TEST(Verify, CatchesABufferOutsideOfTheArena) {
  ExpectCaught(
      kSharded, [](Compiled* c) { c->program.arena_bytes -= 256; }, "3", "leaves the arena");
  ExpectCaught(
      kSharded, [](Compiled* c) { c->program.buffers[1].offset += 4; }, "3", "not aligned");
}

TEST(Verify, CatchesABufferTooSmall) {
  ExpectCaught(
      kSharded, [](Compiled* c) { c->program.buffers[0].bytes -= 1; }, "3", "gathered buffer of embedding");
}

TEST(Verify, CatchesAMissingForward) {
  ExpectCaught(
      kSharded,
      [](Compiled* c) { c->program.instructions[Find(c->program, Op::kForward, 2, 1)].micro_batch = 0; }, "4",
      "Forward layer.1 mb 0");
}

TEST(Verify, CatchesForwardsOutOfChainOrder) {
  ExpectCaught(
      Strategy::kNoShard,
      [](Compiled* c) {
        std::swap(c->program.instructions[Find(c->program, Op::kForward, 1, 0)],
                  c->program.instructions[Find(c->program, Op::kForward, 2, 0)]);
      },
      "4", "Forward layer.1 mb 0");
}

TEST(Verify, CatchesAWrongLane) {
  ExpectCaught(
      Strategy::kNoShard,
      [](Compiled* c) { c->program.instructions[Find(c->program, Op::kUpdate, 0)].lane = LaneId::kGather; },
      "4", "Update embedding");
}

TEST(Verify, CatchesAFirstReduceThatAdds) {
  ExpectCaught(
      kSharded,
      [](Compiled* c) { c->program.instructions[Find(c->program, Op::kReduce, 3, 0)].accumulate = true; },
      "5", "Reduce layer.2 mb 0");
}

TEST(Verify, CatchesALaterReduceThatSets) {
  ExpectCaught(
      kSharded,
      [](Compiled* c) { c->program.instructions[Find(c->program, Op::kReduce, 3, 1)].accumulate = false; },
      "5", "Reduce layer.2 mb 1");
}

TEST(Verify, CatchesABackwardThatForgetsTheFirstMicroBatch) {
  ExpectCaught(
      Strategy::kNoShard,
      [](Compiled* c) { c->program.instructions[Find(c->program, Op::kBackward, 1, 1)].accumulate = false; },
      "5", "Backward layer.0 mb 1");
}

TEST(Verify, CatchesAReduceForTheWrongMicroBatch) {
  ExpectCaught(
      kSharded,
      [](Compiled* c) { c->program.instructions[Find(c->program, Op::kReduce, 1, 1)].micro_batch = 0; }, "5",
      "Reduce layer.0 mb 0");
}

TEST(Verify, CatchesAnUpdateBeforeTheNorm) {
  ExpectCaught(
      kSharded, [](Compiled* c) { c->program.instructions[Find(c->program, Op::kUpdate, 0)].after.clear(); },
      "6", "Update embedding");
}

TEST(Verify, CatchesAMissingUpdate) {
  ExpectCaught(
      kSharded, [](Compiled* c) { c->program.instructions.pop_back(); }, "6", "Update head is missing");
}

TEST(Verify, CatchesAnArenaOverTheBudget) {
  ExpectCaught(
      kSharded, [](Compiled* c) { c->spec.memory_budget_bytes = c->program.arena_bytes - 1; }, "7", "budget");
}

// The compiler leaves out what is implied, so the loss of any one dependency must show. Two kinds are no
// matter of correctness alone: a Gather's may only bound prefetch, and a Backward's on a Reduce may guard
// bytes that the arena did not share after all; of those, some must show.
TEST(Verify, NeedsTheCompilersDependencies) {
  int guards_caught = 0;
  for (const int64_t prefetch : {int64_t{0}, int64_t{1} << 14, int64_t{1} << 20}) {
    Spec spec = SmallSpec(kSharded);
    spec.prefetch_bytes = prefetch;
    const Compiled good = Compile(spec);
    int lost = 0;
    for (size_t i = 0; i < good.program.instructions.size(); ++i) {
      const Instruction& at = good.program.instructions[i];
      for (size_t k = 0; k < at.after.size(); ++k) {
        Program hurt = good.program;
        hurt.instructions[i].after.erase(hurt.instructions[i].after.begin() + static_cast<int64_t>(k));
        const bool caught = !Verify(hurt, good.layout, good.spec).ok();
        const bool guard = at.op == Op::kGather || (at.op == Op::kBackward &&
                                                    good.program.instructions[at.after[k]].op == Op::kReduce);
        if (guard) {
          guards_caught += caught;
          continue;
        }
        ++lost;
        EXPECT_TRUE(caught) << "prefetch " << prefetch << ": "
                            << Describe(good.program, good.layout, static_cast<int>(i));
      }
    }
    EXPECT_GT(lost, 20);
  }
  EXPECT_GT(guards_caught, 10);
}

Spec RandomSpec(std::mt19937* random) {
  const auto pick = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(*random);
  };
  Spec spec;
  const int64_t kv = pick(1, 3);
  const int64_t heads = kv * pick(1, 3);
  spec.model = {pick(1, 300), heads * 2 * pick(1, 9), pick(1, 200), pick(1, 12), heads, kv, 10000, 1e-5};
  spec.data.sequence_length = pick(1, 64);
  spec.data.synthetic_vocab = spec.model.vocab_size;
  spec.steps = 1;
  spec.world = pick(1, 16);
  spec.micro_batch = pick(1, 3);
  spec.global_batch = spec.world * spec.micro_batch * pick(1, 4);
  spec.compute = pick(0, 1) == 0 ? DType::kFp32 : DType::kBf16;
  spec.recompute = pick(0, 1) == 0 ? Recompute::kNone : Recompute::kFull;
  spec.strategy = pick(0, 3) == 0 ? Strategy::kNoShard : kSharded;
  spec.prefetch_bytes = pick(0, 3) == 0 ? 0 : pick(0, int64_t{1} << pick(8, 24));
  return spec;
}

TEST(Verify, AcceptsEveryProgramOfTheCompiler) {
  std::mt19937 random(20240229);
  for (int i = 0; i < 2000; ++i) {
    const Compiled c = Compile(RandomSpec(&random));
    const absl::Status status = Verify(c.program, c.layout, c.spec);
    ASSERT_TRUE(status.ok()) << "spec " << i << ": " << status;
    ASSERT_LE(c.program.live_peak_bytes, c.program.arena_bytes);
  }
}

}  // namespace
}  // namespace fsdpd
