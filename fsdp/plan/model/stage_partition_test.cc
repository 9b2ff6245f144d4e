#include "fsdp/plan/model/stage_partition.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "fsdp/plan/model/describe_model.h"

namespace fsdpd {
namespace {

ModelFacts Chain(const std::vector<double>& work) {
  ModelFacts model;
  for (const double each : work) {
    model.units.emplace_back();
    model.units.back().forward_flops = each;
  }
  model.units.front().kind = UnitKind::kEmbedding;
  model.units.front().output_bytes = 96;
  model.units.back().kind = UnitKind::kHead;
  return model;
}

TEST(StagePartition, MinimizesWorkOfLargestStage) {
  EXPECT_EQ(BalancedRuns(Chain({0, 1, 1, 1, 1, 0}), 2), (std::vector<int64_t>{3, 3}));
  EXPECT_EQ(BalancedRuns(Chain({0, 1, 1, 1, 1, 2}), 2), (std::vector<int64_t>{4, 2}));
  EXPECT_EQ(BalancedRuns(Chain({5, 1, 1, 1, 1, 1}), 2), (std::vector<int64_t>{1, 5}));
}

TEST(StagePartition, BalancesRemainingStages) {
  EXPECT_EQ(BalancedRuns(Chain({9, 1, 1, 1, 1, 1, 1}), 4), (std::vector<int64_t>{1, 2, 2, 2}));
  EXPECT_EQ(BalancedRuns(Chain({1, 1, 1, 1, 1, 1, 9}), 4), (std::vector<int64_t>{2, 2, 2, 1}));
}

TEST(StagePartition, SupportsOneStageAndOneUnitPerStage) {
  EXPECT_EQ(BalancedRuns(Chain({0, 3, 1}), 3), (std::vector<int64_t>{1, 1, 1}));
  EXPECT_EQ(BalancedRuns(Chain({0, 3, 1}), 1), (std::vector<int64_t>{3}));
}

// 80 equal layers; the head with a large vocabulary costs more than one of them.
TEST(StagePartition, CountsEmbeddingAndHead) {
  Spec spec;
  spec.model = *FindPreset("llama3-70b");
  spec.data.sequence_length = 8192;
  spec.precision.compute = DType::kBf16;
  const ModelFacts model = DescribeSpec(spec);
  const std::vector<int64_t> stages = BalancedRuns(model, 4);
  EXPECT_EQ(std::accumulate(stages.begin(), stages.end(), int64_t{0}), 82);
  EXPECT_LT(stages.back(), stages.front());
}

// The head stays in bf16, so relative to FP8 layers in half the time it counts twice.
TEST(StagePartition, CountsFp8LayersAsLessWork) {
  Spec spec;
  spec.model = *FindPreset("llama3-8b");
  spec.data.sequence_length = 8192;
  spec.precision.compute = DType::kBf16;
  const std::vector<int64_t> bf16 = BalancedRuns(DescribeSpec(spec), 4);
  spec.precision.fp8 = true;
  const std::vector<int64_t> fp8 = BalancedRuns(DescribeSpec(spec), 4);
  EXPECT_LT(fp8.back(), bf16.back());
}

TEST(StagePartition, CountsMeasuredTime) {
  UnitFacts unit;
  unit.forward_flops = 100;
  unit.measured.emplace();
  unit.measured->front() = {7, 11};
  EXPECT_EQ(WorkOf(unit), 18);
  unit.engine_flops = 5;
  EXPECT_EQ(WorkOf(unit), 18 + 3 * 5) << "the output projection";
}

TEST(StagePartition, PartitionsThousandLayersQuickly) {
  std::vector<double> work(1026, 7);
  work.back() = 50;
  const std::vector<int64_t> runs = BalancedRuns(Chain(work), 512);
  EXPECT_EQ(std::accumulate(runs.begin(), runs.end(), int64_t{0}), 1026);
  EXPECT_LE(*std::max_element(runs.begin(), runs.end()), 7);  // The head costs as much by itself.
}

TEST(StagePartition, SetsStagePlaceAndOutputSize) {
  const std::vector<ModelFacts> stages =
      PartitionIntoStages(Chain({0, 1, 1, 1, 2}), {2, 2, 1}, 3, DType::kBf16);
  ASSERT_EQ(stages.size(), 3u);
  EXPECT_TRUE(stages[0].stage.first() && !stages[0].stage.last());
  EXPECT_TRUE(stages[2].stage.last() && !stages[2].stage.first());
  EXPECT_EQ(stages[1].stage.runs[0].first_unit, 2);
  EXPECT_EQ(stages[1].stage.runs[0].first_block, 1);
  EXPECT_EQ(stages[2].stage.runs[0].first_block, 3);
  EXPECT_EQ(stages[1].stage.hidden_elements, 48);
  EXPECT_EQ(stages[0].stage.InFlight(8), 3);
  EXPECT_EQ(stages[0].stage.InFlight(2), 2);
  EXPECT_EQ(stages[2].stage.InFlight(8), 1);
}

TEST(StagePartition, CountsExpertChoicesOfAllStages) {
  ModelFacts model = Chain({0, 1, 1, 2});
  model.choices = 16;
  for (const ModelFacts& stage : PartitionIntoStages(model, {2, 2}, 2, DType::kBf16))
    EXPECT_EQ(stage.choices, 16);
}

TEST(StagePartition, AssignsRunsRoundRobin) {
  const std::vector<ModelFacts> stages =
      PartitionIntoStages(Chain({1, 2, 3, 4, 5, 6, 7}), {2, 1, 1, 3}, 2, DType::kFp32);
  ASSERT_EQ(stages.size(), 2u);
  const StagePlace& first = stages[0].stage;
  ASSERT_EQ(stages[0].units.size(), 3u);
  EXPECT_EQ(stages[0].units[2].forward_flops, 4);
  EXPECT_EQ(first.runs[1].begin, 2);
  EXPECT_EQ(first.runs[1].end, 3);
  EXPECT_EQ(first.runs[1].first_block, 2);
  EXPECT_EQ(first.runs[1].first_unit, 3);
  EXPECT_EQ(first.ModelRunIndex(2), 2);
  EXPECT_FALSE(first.ReceivesInput(0));
  EXPECT_TRUE(first.SendsOutput(1));
  EXPECT_TRUE(first.ReceivesInput(2) && first.SendsOutput(2));
  const StagePlace& last = stages[1].stage;
  EXPECT_EQ(last.runs[1].first_unit + 3 - last.runs[1].begin, 6);
  EXPECT_TRUE(last.ReceivesInput(0) && last.SendsOutput(0) && last.ReceivesInput(1));
  EXPECT_FALSE(last.SendsOutput(3));
  EXPECT_EQ(first.InFlight(8), 5);
  EXPECT_EQ(last.InFlight(8), 3);
}

}  // namespace
}  // namespace fsdpd
