#include "fsdp/plan/budget.h"

#include <gtest/gtest.h>

#include "fsdp/plan/program_cases.h"

namespace fsdpd {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

StepMemory MemoryOf(const Spec& spec) {
  const ModelFacts model = DescribeSpec(spec);
  const Layout layout = MakeLayout(model, LayoutOptionsOf(spec));
  return PlanMemory(spec, model, layout, CompileProgram(spec, model, layout));
}

int64_t PeakOf(const Spec& spec) { return MemoryOf(spec).peak_bytes; }

// The advice for `spec` when a device has just what `fitting` needs.
std::string AdviceToFit(Spec spec, const Spec& fitting) {
  spec.memory_budget_bytes = PeakOf(fitting);
  const Violations faults = CheckBudget(spec, MemoryOf(spec));
  EXPECT_EQ(faults.size(), 1u);
  return faults.empty() ? "" : faults[0].fix;
}

TEST(Budget, AcceptsWhatFitsAndWhatHasNoBudget) {
  Spec spec = Llama8b(8);
  const StepMemory memory = MemoryOf(spec);
  EXPECT_TRUE(CheckBudget(spec, memory).empty());
  spec.memory_budget_bytes = memory.peak_bytes;
  EXPECT_TRUE(CheckBudget(spec, memory).empty());
  spec.memory_budget_bytes = memory.peak_bytes - 1;
  EXPECT_EQ(CheckBudget(spec, memory).size(), 1u);
}

TEST(Budget, NamesWhatOverflowsAndWhatIsLargest) {
  Spec spec = Llama8b(8);
  spec.memory_budget_bytes = kGiB;
  const Violations faults = CheckBudget(spec, MemoryOf(spec));
  ASSERT_EQ(faults.size(), 1u);
  EXPECT_EQ(faults[0].rule, "memory_over_budget");
  EXPECT_EQ(faults[0].field, "resources.memory_budget_bytes");
  EXPECT_NE(faults[0].reason.find("Adding up, main_params"), std::string::npos) << faults[0].reason;
  EXPECT_NE(faults[0].reason.find("largest part is activations"), std::string::npos) << faults[0].reason;
}

TEST(Budget, OffersASmallerMicroBatchFirst) {
  Spec spec = Llama8b(8);
  spec.micro_batch = 4;
  Spec fitting = spec;
  fitting.micro_batch = 2;
  EXPECT_EQ(AdviceToFit(spec, fitting).find("use train.micro_batch: 2: the peak becomes "), 0u);
}

TEST(Budget, OffersTheLeastRecomputeThatIsEnough) {
  const Spec spec = Llama8b(8);
  Spec fitting = spec;
  fitting.recompute = Recompute::kSelective;
  fitting.recompute_layers = 9;
  EXPECT_EQ(AdviceToFit(spec, fitting).find("use fsdp.recompute: selective with fsdp.recompute_layers: 9: "),
            0u);
  fitting.recompute = Recompute::kFull;
  fitting.recompute_layers = 32;
  EXPECT_EQ(AdviceToFit(spec, fitting).find("use fsdp.recompute: full: "), 0u);
}

TEST(Budget, OffersToShardMoreWhereSomethingIsWhole) {
  Spec spec = Llama8b(8);
  spec.recompute = Recompute::kFull;
  spec.recompute_layers = 32;
  Spec fitting = spec;
  spec.strategy = Strategy::kNoShard;
  fitting.strategy = Strategy::kOptimGrads;
  EXPECT_EQ(AdviceToFit(spec, fitting).find("use fsdp.strategy: optim_grads: "), 0u);
  spec.strategy = Strategy::kOptimGradsParams;
  spec.keep_gathered = true;
  fitting.strategy = Strategy::kOptimGradsParams;
  EXPECT_EQ(AdviceToFit(spec, fitting).find("use fsdp.keep_gathered: false: "), 0u);
}

TEST(Budget, OffersToShardOverReplicas) {
  Spec spec = Llama8b(8);
  spec.recompute = Recompute::kFull;
  spec.recompute_layers = 32;
  spec.outer_size = 2;
  Spec fitting = spec;
  fitting.outer_strategy = Strategy::kOptim;
  EXPECT_EQ(AdviceToFit(spec, fitting).find("use fsdp.outer.strategy: optim: "), 0u);
  fitting = spec;
  fitting.outer_size = 1;
  EXPECT_EQ(AdviceToFit(spec, fitting).find("use fsdp.outer.size: 1: "), 0u);
}

TEST(Budget, OffersNarrowMomentsBeforeMoreRanks) {
  Spec spec = Llama8b(8);
  spec.recompute = Recompute::kFull;
  spec.recompute_layers = 32;
  Spec fitting = spec;
  fitting.moments = DType::kBf16;
  EXPECT_EQ(AdviceToFit(spec, fitting).find("use precision.moments: bf16: "), 0u);
}

TEST(Budget, OffersTheFewestDoublingsOfRanksThatFit) {
  Spec spec = Llama8b(8);
  spec.recompute = Recompute::kFull;
  spec.recompute_layers = 32;
  spec.moments = DType::kBf16;
  Spec fitting = spec;
  fitting.world = 32;
  EXPECT_EQ(AdviceToFit(spec, fitting).find("use 32 ranks instead of 8: "), 0u);
  spec.global_batch = 8;  // Does not split among more.
  fitting.world = 16;
  fitting.global_batch = 16;
  EXPECT_EQ(AdviceToFit(spec, fitting).find("use 16 ranks instead of 8 with train.global_batch: 16: "), 0u);
}

TEST(Budget, PutsChangesTogetherAndLeavesOutThoseThatAreNotNeeded) {
  Spec spec = Llama8b(8);
  spec.micro_batch = 2;
  Spec fitting = spec;
  fitting.recompute = Recompute::kFull;
  fitting.recompute_layers = 32;
  fitting.moments = DType::kBf16;
  fitting.micro_batch = 1;
  fitting.world = 16;
  const std::string advice = AdviceToFit(spec, fitting);
  EXPECT_EQ(
      advice.find("use train.micro_batch: 1 and fsdp.recompute: full and precision.moments: bf16 and 16 "
                  "ranks instead of 8: "),
      0u)
      << advice;
}

TEST(Budget, SaysWhenNothingHelps) {
  Spec spec = Llama8b(8);
  spec.memory_budget_bytes = kGiB;
  const Violations faults = CheckBudget(spec, MemoryOf(spec));
  ASSERT_EQ(faults.size(), 1u);
  EXPECT_NE(faults[0].fix.find("no change"), std::string::npos) << faults[0].fix;
}

}  // namespace
}  // namespace fsdpd
