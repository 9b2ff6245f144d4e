#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <limits>

#include "fsdp/plan/program/testing/program_cases.h"

namespace fsdpd {
namespace {

double ArenaOverLivePeak(const Spec& spec) {
  const Program program = Compiled(spec).program;
  EXPECT_GE(program.arena_bytes, program.live_peak_bytes);
  return static_cast<double>(program.arena_bytes) / static_cast<double>(program.live_peak_bytes);
}

// Largest ratio over world sizes, micro-batches, prefetch bounds and communication types.
double WorstRatio(Spec base, const std::vector<double>& units_ahead) {
  double worst = 0;
  for (const int64_t world : {1, 8, 64}) {
    for (const int64_t micro_batches : {1, 4}) {
      for (const double ahead : units_ahead) {
        for (const DType wire : {DType::kFp32, DType::kBf16}) {
          Spec spec = base;
          spec.global_batch = world * micro_batches;
          const int64_t replicas = world == 1 ? 1 : base.mesh.size(Axis::kReplicate);
          spec.mesh = Mesh::DataParallel(replicas, world / replicas);
          spec.precision.grad_comm = wire;
          spec.prefetch_bytes = static_cast<int64_t>(ahead * static_cast<double>(LargestGatheredBytes(spec)));
          worst = std::max(worst, ArenaOverLivePeak(spec));
        }
      }
    }
  }
  return worst;
}

TEST(Arena, IsNearLowerBoundForEveryStrategyAndMesh) {
  for (const char* preset : {"llama3-1b", "llama3-8b", "llama3-70b", "qwen3-8b"}) {
    for (const Strategy strategy : kStrategies) {
      for (const int64_t outer : {1, 2}) {
        for (const Strategy outer_strategy : {Strategy::kNoShard, Strategy::kOptim}) {
          if (outer == 1 && outer_strategy == Strategy::kOptim) continue;
          if (outer > 1 && strategy != Strategy::kOptimGradsParams) continue;
          Spec spec = PresetSpec(preset, 1, 1);
          spec.strategy = strategy;
          spec.mesh = Mesh::DataParallel(outer, 1);
          spec.outer_strategy = outer_strategy;
          const bool per_pass = strategy == Strategy::kOptimGradsParams;
          const double ratio =
              WorstRatio(spec, per_pass ? std::vector<double>{0, 0.5, 1} : std::vector<double>{0});
          std::printf("%-10s %-18s outer %s: arena at most %.3f x the live peak\n", preset, NameOf(strategy),
                      outer == 1 ? "none" : NameOf(outer_strategy), ratio);
          EXPECT_LE(ratio, 1.05);
        }
      }
    }
  }
}

TEST(Arena, IsNearLowerBoundWithKeptAndFrozenBuckets) {
  for (const char* preset : {"llama3-8b", "qwen3-8b"}) {
    Spec kept = PresetSpec(preset, 1, 1);
    kept.keep_gathered = true;
    EXPECT_LE(WorstRatio(kept, {0}), 1.05);
    Spec frozen = PresetSpec(preset, 1, 1);
    frozen.frozen = {"embedding.*", "*norm*"};
    EXPECT_LE(WorstRatio(frozen, {0, 1}), 1.05);
  }
}

// A tied embedding is live at the start, in the middle and at the end of a step, so every buffer live at one
// of these needs another offset. These arenas reach Offsets::bound_bytes.
TEST(Arena, TiedEmbeddingsCostOneFixedOffset) {
  for (const char* preset : {"gpt2", "llama3-1b", "qwen3-8b"}) {
    for (const Strategy strategy : kStrategies) {
      Spec spec = PresetSpec(preset, 1, 1);
      spec.strategy = strategy;
      if (auto* llama = std::get_if<LlamaConfig>(&spec.model)) llama->tied_embeddings = true;
      const bool per_pass = strategy == Strategy::kOptimGradsParams;
      const double ratio =
          WorstRatio(spec, per_pass ? std::vector<double>{0, 0.5, 1} : std::vector<double>{0});
      std::printf("%-10s tied %-18s: arena at most %.3f x the live peak\n", preset, NameOf(strategy), ratio);
      EXPECT_LE(ratio, per_pass ? 1.08 : 1.05);
    }
  }
}

TEST(Arena, GrowsWithPrefetch) {
  int64_t arena = 0;
  Spec spec = PresetSpec("llama3-8b", 8, 1);
  const int64_t largest = LargestGatheredBytes(spec);
  for (const int64_t units_ahead : {0, 1, 3}) {
    spec.prefetch_bytes = units_ahead * largest;
    const int64_t bytes = Compiled(spec).program.arena_bytes;
    EXPECT_GT(bytes, arena);
    arena = bytes;
  }
}

TEST(Arena, DoesNotGrowWithSharding) {
  int64_t arena = std::numeric_limits<int64_t>::max();
  for (const Strategy strategy : kStrategies) {
    Spec spec = PresetSpec("llama3-8b", 8, 2);
    spec.strategy = strategy;
    const int64_t bytes = Compiled(spec).program.arena_bytes;
    EXPECT_LE(bytes, arena) << NameOf(strategy);
    arena = bytes;
  }
}

TEST(Arena, NextBackwardUsesOtherBufferDuringReduce) {
  Spec spec = PresetSpec("llama3-8b", 8, 2);
  spec.prefetch_bytes = LargestGatheredBytes(spec);
  const Program program = Compiled(spec).program;
  std::vector<Buffer> reduce;
  for (const Buffer& buffer : program.buffers) {
    EXPECT_EQ(buffer.offset % 256, 0);
    if (buffer.kind == BufferKind::kReduce) reduce.push_back(buffer);
  }
  for (size_t u = 1; u < reduce.size(); ++u) {
    const Buffer& a = reduce[u];
    const Buffer& b = reduce[u - 1];
    EXPECT_TRUE(a.offset + a.bytes <= b.offset || b.offset + b.bytes <= a.offset) << a.bucket;
  }
}

// Printed; bounded only to catch times that would block a submit.
TEST(Arena, CompilesLargeProgramsQuickly) {
  for (const Strategy strategy : kStrategies) {
    Spec spec = PresetSpec("llama3-70b", 64, 64);
    std::get<LlamaConfig>(spec.model).layers = 128;
    spec.strategy = strategy;
    spec.prefetch_bytes = LargestGatheredBytes(spec);
    const auto start = std::chrono::steady_clock::now();
    const Program program = Compiled(spec).program;
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    std::printf("%-18s %zu instructions in %.3f s\n", NameOf(strategy), program.instructions.size(),
                seconds.count());
    EXPECT_LT(seconds.count(), 30);
  }
}

}  // namespace
}  // namespace fsdpd
