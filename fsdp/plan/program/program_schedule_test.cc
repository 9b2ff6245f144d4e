// Invariants of programs, checked over many models, meshes and strategies.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <random>
#include <set>
#include <tuple>
#include <vector>

#include "base/seeds.h"
#include "fsdp/plan/program/residencies.h"
#include "fsdp/plan/program/testing/program_cases.h"

namespace fsdpd {
namespace {

int64_t GatheredBytes(const ProgramCase& made, int bucket) {
  return made.layout.buckets[bucket].bucket_elements * BytesOf(made.spec.precision.compute);
}

Spec RandomSpec(std::mt19937* random) {
  const auto pick = [random](int count) {
    return static_cast<int>((*random)() % static_cast<unsigned>(count));
  };
  Spec spec = PresetSpec("tiny", 1 << pick(4), 1 + pick(3));
  auto& llama = std::get<LlamaConfig>(spec.model);
  llama.layers = 1 + pick(6);
  llama.vocab_size = 64 << pick(6);
  llama.tied_embeddings = pick(2) == 0;
  spec.strategy = kStrategies[pick(4)];
  spec.keep_gathered = pick(4) == 0;
  spec.precision.grad_comm = pick(2) == 0 ? DType::kBf16 : DType::kFp32;
  if (spec.strategy == Strategy::kOptimGradsParams && spec.mesh.world() >= 4 && pick(2) == 0) {
    spec.mesh = spec.mesh.WithReplicas(2);
    spec.outer_strategy = pick(2) == 0 ? Strategy::kOptim : Strategy::kNoShard;
  }
  const std::vector<std::vector<std::string>> frozen = {{},         {},          {"embedding.*"},
                                                        {"*norm*"}, {"layer.*"}, {"head.*"}};
  spec.frozen = frozen[static_cast<size_t>(pick(6))];
  spec.prefetch_bytes = LargestGatheredBytes(spec) * pick(7) / 2;
  return spec;
}

template <typename Check>
void ForRandomPrograms(int count, Check check) {
  std::mt19937 random(11);
  for (int i = 0; i < Seeds(count); ++i) {
    const ProgramCase made = Compiled(RandomSpec(&random));
    SCOPED_TRACE(testing::Message() << "program " << i << ", " << NameOf(made.spec.strategy));
    check(made);
    if (testing::Test::HasFatalFailure()) return;
  }
}

// Buckets that a pass reads.
std::set<int> BucketsOf(const Layout& layout, const Instruction& at) {
  std::set<int> buckets;
  for (const int read : UnitsReadBy(layout, {at.unit, at.micro_batch, at.op})) {
    buckets.insert(layout.units[read].buckets.begin(), layout.units[read].buckets.end());
  }
  return buckets;
}

// At each pass: buckets gathered for a later pass. A gather may run as soon as its dependencies are done, so
// everything listed before the pass counts.
TEST(Schedule, RespectsPrefetchBytes) {
  int64_t bounded = 0;
  ForRandomPrograms(300, [&](const ProgramCase& made) {
    if (made.spec.keeps_gathered()) return;
    std::set<int> there, waiting;  // Buckets.
    int64_t most = 0;
    for (const Instruction& at : made.program.instructions) {
      if (at.op == Op::kGather) {
        ASSERT_TRUE(there.insert(at.bucket).second);
        waiting.insert(at.bucket);
      } else if (at.op == Op::kRelease) {
        for (const int b : made.layout.units[at.unit].buckets) {
          ASSERT_EQ(there.erase(b), 1u);
          ASSERT_EQ(waiting.count(b), 0u) << "released and never used";
        }
      } else if (at.op == Op::kForward || at.op == Op::kBackward || at.op == Op::kForwardBackward) {
        for (const int b : BucketsOf(made.layout, at)) {
          ASSERT_EQ(there.count(b), 1u);
          waiting.erase(b);
        }
        int64_t bytes = 0;
        for (const int b : waiting) bytes += GatheredBytes(made, b);
        most = std::max(most, bytes);
      }
    }
    ASSERT_TRUE(there.empty());
    ASSERT_LE(most, made.spec.prefetch_bytes);
    bounded += most;
  });
  EXPECT_GT(bounded, 0);  // The bound was reached.
}

// A Gather is listed as early as its bytes and its buffer allow.
TEST(Schedule, GathersStartAsEarlyAsAllowed) {
  ForRandomPrograms(100, [](const ProgramCase& made) {
    const auto passes = TrainingSchedule(static_cast<int>(made.layout.units.size()),
                                         static_cast<int>(made.spec.micro_batches_per_step()));
    const auto residencies = ListResidencies(made.layout, passes, made.spec.keeps_gathered());
    std::vector<int64_t> bytes;
    for (size_t b = 0; b < made.layout.buckets.size(); ++b) {
      bytes.push_back(GatheredBytes(made, static_cast<int>(b)));
    }
    const auto gathers = PlanGathers(made.layout, residencies, bytes, made.spec.prefetch_bytes);
    const auto needed_at = [&](size_t i) { return residencies[gathers[i].residency].first_pass; };
    for (size_t i = 0; i < gathers.size(); ++i) {
      ASSERT_LE(gathers[i].from_pass, needed_at(i));
      if (gathers[i].from_pass == 0) continue;
      const int earlier = gathers[i].from_pass - 1;
      int64_t waiting = 0;
      for (size_t k = 0; k <= i; ++k) {
        if (needed_at(k) > earlier) waiting += bytes[gathers[k].bucket];
      }
      bool in_use = false;
      for (int r = 0; r < gathers[i].residency; ++r) {
        in_use |= residencies[r].unit == residencies[gathers[i].residency].unit &&
                  residencies[r].last_pass >= earlier;
      }
      ASSERT_TRUE(waiting > made.spec.prefetch_bytes || in_use) << "gather " << i;
    }
  });
}

TEST(Schedule, ReducesAndUpdatesEveryGradientOnce) {
  ForRandomPrograms(200, [](const ProgramCase& made) {
    const auto micro_batches = static_cast<int>(made.spec.micro_batches_per_step());
    std::map<std::pair<Op, int>, int> count;  // By operation and bucket.
    for (const Instruction& at : made.program.instructions) ++count[{at.op, at.bucket}];
    for (size_t i = 0; i < made.layout.buckets.size(); ++i) {
      const int b = static_cast<int>(i);
      const int once = made.layout.buckets[i].trainable ? 1 : 0;
      ASSERT_EQ((count[{Op::kReduce, b}]), made.spec.shards_grads() ? once * micro_batches : once);
      ASSERT_EQ((count[{Op::kReduceOuter, b}]), made.spec.mesh.size(Axis::kReplicate) > 1 ? once : 0);
      ASSERT_EQ((count[{Op::kUpdate, b}]), once);
      ASSERT_EQ((count[{Op::kGatherReplica, b}]), made.spec.shards_over_outer() ? 1 : 0);
      if (!made.spec.keeps_gathered()) continue;
      ASSERT_EQ((count[{Op::kGather, b}]), 1);
    }
    ASSERT_EQ((count[{Op::kNorm, -1}]), 1);
  });
}

// Happens-before over two consecutive steps: lane order, dependencies, and dependencies on the previous step.
class TwoSteps {
 public:
  explicit TwoSteps(const Program& program) : count_(static_cast<int>(program.instructions.size())) {
    std::vector<int> last(kLanes, -1);
    for (int i = 0; i < 2 * count_; ++i) {
      const Instruction& at = program.instructions[i % count_];
      const auto lane = static_cast<size_t>(at.lane);
      before_.emplace_back(2 * count_, false);
      const auto follow = [&](int other) {
        before_[i][other] = true;
        for (int k = 0; k < other; ++k) before_[i][k] = before_[i][k] || before_[other][k];
      };
      if (last[lane] >= 0) follow(last[lane]);
      for (const int other : at.after) follow(i < count_ ? other : other + count_);
      if (i >= count_) {
        for (const int other : at.after_previous) follow(other);
      }
      last[lane] = i;
    }
  }

  // `first` of a step completes before `second` of the next step starts.
  bool Before(int first, int second) const { return before_[count_ + second][first]; }

 private:
  const int count_;
  std::vector<std::vector<bool>> before_;
};

bool Overlap(const Buffer& a, const Buffer& b) {
  return a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes;
}

TEST(Schedule, WaitsForBuffersOfPreviousStep) {
  ForRandomPrograms(60, [](const ProgramCase& made) {
    const Program& program = made.program;
    const TwoSteps order(program);
    std::vector<int> update(made.layout.buckets.size(), -1);
    for (size_t i = 0; i < program.instructions.size(); ++i) {
      if (program.instructions[i].op == Op::kUpdate) {
        update[program.instructions[i].bucket] = static_cast<int>(i);
      }
    }
    for (size_t s = 0; s < program.instructions.size(); ++s) {
      const Instruction& second = program.instructions[s];
      const bool reads_main =
          second.op == Op::kGatherReplica || (second.op == Op::kGather && !made.spec.shards_over_outer());
      if (reads_main && update[second.bucket] >= 0) {
        ASSERT_TRUE(order.Before(update[second.bucket], static_cast<int>(s)))
            << Describe(program, made.layout, static_cast<int>(s));
      }
      for (const BufferUse& use : second.uses) {
        if (use.access == Access::kRead) continue;
        for (size_t f = 0; f < program.instructions.size(); ++f) {
          for (const BufferUse& earlier : program.instructions[f].uses) {
            if (!Overlap(program.buffers[use.buffer], program.buffers[earlier.buffer])) continue;
            ASSERT_TRUE(order.Before(static_cast<int>(f), static_cast<int>(s)))
                << Describe(program, made.layout, static_cast<int>(s))
                << " may run beside the previous step's "
                << Describe(program, made.layout, static_cast<int>(f));
          }
        }
      }
    }
  });
}

TEST(Schedule, EvaluationFitsTrainingBuffers) {
  ForRandomPrograms(200, [](const ProgramCase& made) {
    const Program evaluation = CompileEvaluation(made.spec, made.model, made.layout, made.program);
    ASSERT_EQ(evaluation.arena_bytes, made.program.arena_bytes);
    ASSERT_LE(evaluation.live_peak_bytes, evaluation.arena_bytes);
    ASSERT_EQ(evaluation.buffers.size(), made.program.buffers.size());
    for (size_t i = 0; i < evaluation.buffers.size(); ++i) {
      const Buffer& a = evaluation.buffers[i];
      ASSERT_EQ(a.offset, made.program.buffers[i].offset);
      for (size_t k = 0; k < i; ++k) {
        const Buffer& b = evaluation.buffers[k];
        if (!Overlap(a, b)) continue;
        for (const Buffer::Interval& x : a.live) {
          for (const Buffer::Interval& y : b.live) ASSERT_TRUE(x.dies < y.born || y.dies < x.born);
        }
      }
    }
    EXPECT_EQ(evaluation.instructions.back().op, Op::kLoss);
  });
}

// FP8 layers have three buckets: 58 and 160 million elements, and a few thousand. With a limit in buckets
// instead of bytes, a large one would wait for the previous large one to be written back.
TEST(Schedule, FetchesStateWhenBytesAreFree) {
  for (const bool fp8 : {false, true}) {
    Spec spec = Llama8b(4);
    spec.offload_optimizer = true;
    spec.precision.fp8 = fp8;
    const ProgramCase made = Compiled(spec);
    const int64_t room = StagingCapacity(made.layout);
    int64_t there = 0;
    int offloads = 0, fetches = 0, last_offload = -1, waited = -1, large_together = 0;
    std::map<int, bool> large;  // Buckets on the device.
    for (size_t i = 0; i < made.program.instructions.size(); ++i) {
      const Instruction& each = made.program.instructions[i];
      if (each.op != Op::kFetch && each.op != Op::kOffload) continue;
      const int64_t bytes = made.layout.buckets[each.bucket].offloaded_bytes();
      if (each.op == Op::kOffload) {
        there -= bytes;
        large.erase(each.bucket);
        last_offload = static_cast<int>(i);
        ++offloads;
        continue;
      }
      EXPECT_LE(there += bytes, room) << i;
      if (bytes > room / 10) large[each.bucket] = true;
      if (large.size() >= 2) ++large_together;
      ++fetches;
      if (!each.after.empty()) waited = each.after.back();  // Later instructions of its lane wait too.
      EXPECT_EQ(waited, last_offload) << i;
    }
    EXPECT_EQ(fetches, offloads);
    EXPECT_EQ(there, 0);
    EXPECT_GE(large_together, 32) << fp8;
  }
}

}  // namespace
}  // namespace fsdpd
