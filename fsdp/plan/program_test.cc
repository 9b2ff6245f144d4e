#include "fsdp/plan/program.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <map>

namespace fsdpd {
namespace {

Spec SpecOf(const char* preset, int64_t world, int64_t micro_batches, DType compute = DType::kBf16) {
  Spec spec;
  spec.model = *FindPreset(preset);
  spec.data.sequence_length = 128;
  spec.steps = 1;
  spec.world = world;
  spec.global_batch = world * micro_batches;
  spec.compute = compute;
  return spec;
}

Layout LayoutOf(const Spec& spec) {
  const ModelFacts model =
      DescribeLlama(spec.model, spec.micro_batch, spec.data.sequence_length, spec.compute);
  return MakeLayout(model, spec.strategy == Strategy::kNoShard ? 1 : spec.world, spec.compute);
}

int64_t LargestGathered(const Spec& spec) {
  int64_t largest = 0;
  for (const UnitLayout& unit : LayoutOf(spec).units) {
    largest = std::max(largest, unit.bucket_elements * BytesOf(spec.compute));
  }
  return largest;
}

std::map<Op, int> CountOps(const Program& program) {
  std::map<Op, int> count;
  for (const Instruction& at : program.instructions) ++count[at.op];
  return count;
}

std::vector<std::string> Lines(const Program& program, const Layout& layout) {
  std::vector<std::string> lines;
  for (size_t i = 0; i < program.instructions.size(); ++i) {
    lines.push_back(Describe(program, layout, static_cast<int>(i)));
  }
  return lines;
}

TEST(Program, IsTheExpectedOneForTwoLayersAndNoPrefetch) {
  Spec spec = SpecOf("tiny", 2, 1);
  spec.model.layers = 1;
  const Layout layout = LayoutOf(spec);
  EXPECT_EQ(Lines(CompileProgram(spec, layout), layout),
            (std::vector<std::string>{
                "#0 Gather embedding on gather",
                "#1 Forward embedding mb 0 on compute after #0",
                "#2 Release embedding on compute",
                "#3 Gather layer.0 on gather after #2",
                "#4 Forward layer.0 mb 0 on compute after #3",
                "#5 Release layer.0 on compute",
                "#6 Gather head on gather after #5",
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

TEST(Program, CountsItsInstructions) {
  for (const int64_t micro_batches : {1, 2, 4}) {
    Spec spec = SpecOf("tiny", 4, micro_batches);
    std::map<Op, int> count = CountOps(CompileProgram(spec, LayoutOf(spec)));
    const int units = 6, m = static_cast<int>(micro_batches);
    EXPECT_EQ(count[Op::kForward], units * m);
    EXPECT_EQ(count[Op::kBackward], units * m);
    EXPECT_EQ(count[Op::kReduce], units * m);
    EXPECT_EQ(count[Op::kGather], (2 * units - 1) * m);
    EXPECT_EQ(count[Op::kRelease], (2 * units - 1) * m);
    EXPECT_EQ(count[Op::kUpdate], units);
    EXPECT_EQ(count[Op::kNorm], 1);
    spec.strategy = Strategy::kNoShard;
    count = CountOps(CompileProgram(spec, LayoutOf(spec)));
    EXPECT_EQ(count[Op::kGather], units);
    EXPECT_EQ(count[Op::kReduce], units);
    EXPECT_EQ(count[Op::kRelease], 0);
  }
}

// At no point of the list does more wait ahead of compute than prefetch_bytes allows, one unit excepted.
TEST(Program, PrefetchStaysWithinItsBound) {
  for (const int units_ahead : {0, 1, 2, 5}) {
    Spec spec = SpecOf("llama3-1b", 8, 2);
    const Layout layout = LayoutOf(spec);
    spec.prefetch_bytes = layout.units[1].bucket_elements * 2 * units_ahead;
    const Program program = CompileProgram(spec, layout);
    int64_t resident = 0;
    int64_t most_waiting = 0;
    std::vector<int64_t> rows;  // Bytes of gathered and not yet released units, oldest first.
    for (const Instruction& at : program.instructions) {
      if (at.op == Op::kGather) rows.push_back(layout.units[at.unit].bucket_elements * 2);
      if (at.op == Op::kRelease) rows.erase(rows.begin());
      resident = 0;
      for (size_t i = 1; i < rows.size(); ++i) resident += rows[i];
      most_waiting = std::max(most_waiting, resident);
      ASSERT_LE(resident, spec.prefetch_bytes);
    }
    EXPECT_EQ(most_waiting > 0, units_ahead > 0);
  }
}

TEST(Program, MorePrefetchMeansEarlierGathersAndNoOtherWork) {
  Spec spec = SpecOf("llama3-1b", 8, 1);
  const Layout layout = LayoutOf(spec);
  const std::map<Op, int> count = CountOps(CompileProgram(spec, layout));
  int64_t arena = 0;
  for (const int64_t prefetch : {int64_t{0}, int64_t{1} << 28, int64_t{1} << 30, int64_t{1} << 40}) {
    spec.prefetch_bytes = prefetch;
    const Program program = CompileProgram(spec, layout);
    EXPECT_EQ(CountOps(program), count);
    EXPECT_GE(program.arena_bytes, arena);
    arena = program.arena_bytes;
  }
}

TEST(Program, ArenaIsNearItsLowerBoundOnRealShapes) {
  for (const char* preset : {"tiny", "llama3-1b", "llama3-8b", "llama3-70b"}) {
    for (const int64_t micro_batches : {1, 4}) {
      for (const double units_ahead : {0.0, 1.0, 3.0}) {
        Spec spec = SpecOf(preset, 8, micro_batches);
        spec.prefetch_bytes = static_cast<int64_t>(units_ahead * static_cast<double>(LargestGathered(spec)));
        const Program program = CompileProgram(spec, LayoutOf(spec));
        const double ratio =
            static_cast<double>(program.arena_bytes) / static_cast<double>(program.live_peak_bytes);
        std::printf("%-10s mb %d prefetch %.0f units: arena %.2f GiB, %.3f x the live peak\n", preset,
                    static_cast<int>(micro_batches), units_ahead,
                    static_cast<double>(program.arena_bytes) / (1 << 30), ratio);
        EXPECT_GE(ratio, 1);
        EXPECT_LE(ratio, 1.01) << preset;
      }
    }
  }
}

TEST(Program, AUnitHasOnePlaceAndReduceBuffersDiffer) {
  Spec spec = SpecOf("llama3-8b", 8, 2);
  spec.prefetch_bytes = LargestGathered(spec);
  const Layout layout = LayoutOf(spec);
  const Program program = CompileProgram(spec, layout);
  EXPECT_EQ(program.buffers.size(), 2 * layout.units.size());
  std::map<int, const Buffer*> reduce;
  for (const Buffer& buffer : program.buffers) {
    EXPECT_EQ(buffer.offset % 256, 0);
    if (buffer.kind == BufferKind::kReduce) reduce[buffer.unit] = &buffer;
  }
  // While one unit's gradient is reduced, the next unit's Backward writes elsewhere.
  for (size_t u = 1; u < layout.units.size(); ++u) {
    const Buffer& a = *reduce[static_cast<int>(u)];
    const Buffer& b = *reduce[static_cast<int>(u) - 1];
    EXPECT_TRUE(a.offset + a.bytes <= b.offset || b.offset + b.bytes <= a.offset) << layout.units[u].name;
  }
}

TEST(ProgramHash, IsStableAndSeesEveryNumber) {
  const Spec base = SpecOf("tiny", 2, 2);
  const uint64_t hash = CompileProgram(base, LayoutOf(base)).hash;
  EXPECT_EQ(CompileProgram(base, LayoutOf(base)).hash, hash);
  std::vector<Spec> others(11, base);
  others[0].adamw.lr = 1e-3;
  others[1].seed = 2;
  others[2].steps = 2;
  others[3].world = 4;
  others[4].compute = DType::kFp32;
  others[5].prefetch_bytes = 1;
  others[6].recompute = Recompute::kFull;
  others[7].strategy = Strategy::kNoShard;
  others[8].model.rope_theta = 500000;
  others[9].clip_norm = 1;
  others[10].schedule.warmup_steps = 1;
  for (size_t i = 0; i < others.size(); ++i) {
    EXPECT_NE(CompileProgram(others[i], LayoutOf(others[i])).hash, hash) << i;
  }
  Spec same = base;
  same.name = "another";
  same.memory_budget_bytes = int64_t{1} << 40;
  EXPECT_EQ(CompileProgram(same, LayoutOf(same)).hash, hash);
}

}  // namespace
}  // namespace fsdpd
