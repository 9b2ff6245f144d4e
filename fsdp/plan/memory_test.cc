#include "fsdp/plan/memory.h"

#include <gtest/gtest.h>

#include <map>

namespace fsdpd {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

Spec Llama8b(int64_t world) {
  Spec spec;
  spec.model = *FindPreset("llama3-8b");
  spec.data.sequence_length = 8192;
  spec.steps = 1;
  spec.world = world;
  spec.global_batch = 64;
  spec.compute = DType::kBf16;
  spec.prefetch_bytes = kGiB;
  return spec;
}

struct Planned {
  Layout layout;
  Program program;
  StepMemory memory;
};

Planned PlanOf(const Spec& spec) {
  const ModelFacts model =
      DescribeLlama(spec.model, spec.micro_batch, spec.data.sequence_length, spec.compute);
  Planned p;
  p.layout = MakeLayout(model, spec.strategy == Strategy::kNoShard ? 1 : spec.world, spec.compute);
  p.program = CompileProgram(spec, p.layout);
  p.memory = PlanMemory(spec, model, p.layout, p.program);
  return p;
}

std::map<std::string, int64_t> Bytes(const StepMemory& memory) {
  std::map<std::string, int64_t> bytes;
  for (const MemoryComponent& component : memory.components) bytes[component.name] = component.bytes;
  return bytes;
}

TEST(Memory, ShardsStateAndKeepsTheArena) {
  const Planned p = PlanOf(Llama8b(8));
  std::map<std::string, int64_t> bytes = Bytes(p.memory);
  EXPECT_EQ(bytes["main_params"], p.layout.shard_elements() * 4);
  EXPECT_EQ(bytes["optimizer"], p.layout.shard_elements() * 8);
  EXPECT_EQ(bytes["gradients"], p.layout.shard_elements() * 4);
  EXPECT_EQ(bytes["gather_buffers"] + bytes["reduce_buffers"], p.program.arena_bytes);
  EXPECT_GT(bytes["gather_buffers"], 0);
  int64_t sum = 0;
  for (const auto& [name, size] : bytes) sum += size;
  EXPECT_EQ(p.memory.peak_bytes, sum);
}

TEST(Memory, NoShardKeepsEverythingAndOneGradient) {
  Spec spec = Llama8b(8);
  spec.strategy = Strategy::kNoShard;
  const Planned p = PlanOf(spec);
  std::map<std::string, int64_t> bytes = Bytes(p.memory);
  const int64_t elements = p.layout.shard_elements();
  EXPECT_EQ(bytes["main_params"], elements * 4);
  EXPECT_EQ(bytes["gradients"], elements * 4);
  EXPECT_EQ(bytes["reduce_buffers"], 0);
  EXPECT_EQ(bytes["gather_buffers"], elements * 2);
}

TEST(Memory, EstimatesSayThatTheyAre) {
  for (const MemoryComponent& component : PlanOf(Llama8b(8)).memory.components) {
    const bool estimate = component.name == "activations" || component.name == "workspace";
    EXPECT_EQ(component.note.find("estimate") != std::string::npos, estimate) << component.name;
    EXPECT_FALSE(component.note.empty());
  }
}

TEST(Memory, RecomputeKeepsInputsOnly) {
  Spec spec = Llama8b(8);
  const int64_t none = Bytes(PlanOf(spec).memory)["activations"];
  spec.recompute = Recompute::kFull;
  const int64_t full = Bytes(PlanOf(spec).memory)["activations"];
  EXPECT_LT(full * 4, none);
  EXPECT_GT(full, 32 * int64_t{8192} * 4096 * 2);
}

// What CheckBudget relies on when it tries changes.
TEST(Memory, DoesNotGrowWithTheThirdMicroBatch) {
  for (const int64_t prefetch : {int64_t{0}, kGiB, 20 * kGiB}) {
    Spec spec = Llama8b(8);
    spec.prefetch_bytes = prefetch;
    spec.global_batch = 8 * 3;
    const int64_t three = PlanOf(spec).memory.peak_bytes;
    spec.global_batch = 8 * 12;
    EXPECT_EQ(PlanOf(spec).memory.peak_bytes, three) << prefetch;
  }
}

TEST(Budget, AcceptsWhatFitsAndWhatHasNoBudget) {
  Spec spec = Llama8b(8);
  const StepMemory memory = PlanOf(spec).memory;
  EXPECT_TRUE(CheckBudget(spec, memory).empty());
  spec.memory_budget_bytes = memory.peak_bytes;
  EXPECT_TRUE(CheckBudget(spec, memory).empty());
  spec.memory_budget_bytes = memory.peak_bytes - 1;
  EXPECT_EQ(CheckBudget(spec, memory).size(), 1u);
}

// The fix is applied and must fit: it is advice that somebody will follow.
TEST(Budget, OffersRecomputeWhenThatIsEnough) {
  Spec spec = Llama8b(8);
  spec.memory_budget_bytes = 60 * kGiB;
  const Violations faults = CheckBudget(spec, PlanOf(spec).memory);
  ASSERT_EQ(faults.size(), 1u);
  EXPECT_EQ(faults[0].rule, "memory_over_budget");
  EXPECT_NE(faults[0].reason.find("activations"), std::string::npos) << faults[0].reason;
  EXPECT_NE(faults[0].fix.find("fsdp.recompute: full"), std::string::npos) << faults[0].fix;
  spec.recompute = Recompute::kFull;
  EXPECT_LE(PlanOf(spec).memory.peak_bytes, spec.memory_budget_bytes);
}

TEST(Budget, OffersASmallerMicroBatchFirst) {
  Spec spec = Llama8b(8);
  spec.micro_batch = 4;
  spec.memory_budget_bytes = 120 * kGiB;
  const Violations faults = CheckBudget(spec, PlanOf(spec).memory);
  ASSERT_EQ(faults.size(), 1u);
  EXPECT_NE(faults[0].fix.find("train.micro_batch: 1"), std::string::npos) << faults[0].fix;
  spec.micro_batch = 1;
  EXPECT_LE(PlanOf(spec).memory.peak_bytes, spec.memory_budget_bytes);
}

TEST(Budget, OffersTheFewestDoublingsOfRanksThatFit) {
  Spec spec = Llama8b(8);
  spec.recompute = Recompute::kFull;
  spec.memory_budget_bytes = 24 * kGiB;
  const Violations faults = CheckBudget(spec, PlanOf(spec).memory);
  ASSERT_EQ(faults.size(), 1u);
  EXPECT_NE(faults[0].fix.find("use 32 ranks instead of 8"), std::string::npos) << faults[0].fix;
  spec.world = 16;
  EXPECT_GT(PlanOf(spec).memory.peak_bytes, spec.memory_budget_bytes);
  spec.world = 32;
  EXPECT_LE(PlanOf(spec).memory.peak_bytes, spec.memory_budget_bytes);
}

TEST(Budget, SaysWhenNothingHelps) {
  Spec spec = Llama8b(8);
  spec.memory_budget_bytes = kGiB;
  const Violations faults = CheckBudget(spec, PlanOf(spec).memory);
  ASSERT_EQ(faults.size(), 1u);
  EXPECT_NE(faults[0].reason.find("main_params"), std::string::npos) << faults[0].reason;
  EXPECT_NE(faults[0].fix.find("no change"), std::string::npos) << faults[0].fix;
}

}  // namespace
}  // namespace fsdpd
