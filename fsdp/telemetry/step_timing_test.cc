#include "fsdp/telemetry/step_timing.h"

#include <gtest/gtest.h>

namespace fsdpd {
namespace {

constexpr v1::CommOp kNone = v1::COMM_OP_UNSPECIFIED;
constexpr v1::CommOp kAllGather = v1::COMM_OP_ALL_GATHER;
constexpr v1::CommOp kReduceScatter = v1::COMM_OP_REDUCE_SCATTER;

TEST(StepTiming, OverlappedCommunicationIsHidden) {
  const StepTiming timing =
      SummariseStep({{LaneId::kCompute, 0, 10, kNone, 0}, {LaneId::kGather, 2, 5, kAllGather, 7}});
  ASSERT_EQ(timing.ops.size(), 1u);
  EXPECT_DOUBLE_EQ(timing.ops[0].seconds(), 3);
  EXPECT_DOUBLE_EQ(timing.ops[0].exposed_seconds(), 0);
  EXPECT_EQ(timing.ops[0].bytes(), 7);
  EXPECT_EQ(timing.ops[0].count(), 1);
  EXPECT_DOUBLE_EQ(timing.compute_seconds, 10);
  EXPECT_DOUBLE_EQ(timing.step_seconds, 10);
}

TEST(StepTiming, CommunicationInGapsIsExposed) {
  const StepTiming timing = SummariseStep({
      {LaneId::kCompute, 0, 2, kNone, 0},
      {LaneId::kCompute, 4, 6, kNone, 0},
      {LaneId::kCompute, 9, 10, kNone, 0},
      {LaneId::kReduce, 1, 9.5, kReduceScatter, 0},  // Gaps 2-4 and 6-9.
  });
  EXPECT_DOUBLE_EQ(timing.ops[0].exposed_seconds(), 5);
  EXPECT_DOUBLE_EQ(timing.exposed_seconds, 5);
  EXPECT_DOUBLE_EQ(timing.compute_seconds, 5);
}

// Regression test: for overlapping steps, the sum of step times exceeded the elapsed time (by 5% for an 8B
// step).
TEST(StepTiming, TimeBeforeStepIsNotCounted) {
  const StepTiming timing = SummariseStep({
      {LaneId::kGather, -4, -3, kAllGather, 1},
      {LaneId::kGather, -3, 1, kAllGather, 1},
      {LaneId::kCompute, 1, 10, kNone, 0},
  });
  EXPECT_DOUBLE_EQ(timing.step_seconds, 10);
  EXPECT_DOUBLE_EQ(timing.exposed_seconds, 1);
  EXPECT_DOUBLE_EQ(timing.ops[0].exposed_seconds(), 1);
  EXPECT_DOUBLE_EQ(timing.ops[0].seconds(), 5);
}

TEST(StepTiming, ConcurrentExposureCountsOnce) {
  const StepTiming timing = SummariseStep({
      {LaneId::kCompute, 0, 2, kNone, 0},
      {LaneId::kReduce, 1, 5, kReduceScatter, 0},
      {LaneId::kOuter, 4, 7, v1::COMM_OP_OUTER_REDUCE, 0},
      {LaneId::kGather, 8, 9, kAllGather, 0},
  });
  EXPECT_DOUBLE_EQ(timing.exposed_seconds, 6);  // 2-7 and 8-9.
  double by_operation = 0;
  for (const v1::OpTime& op : timing.ops) by_operation += op.exposed_seconds();
  EXPECT_DOUBLE_EQ(by_operation, 7);
}

TEST(StepTiming, SumsByOperationInEnumOrder) {
  const StepTiming timing = SummariseStep({
      {LaneId::kReduce, 0, 1, kReduceScatter, 10},
      {LaneId::kGather, 0, 2, kAllGather, 20},
      {LaneId::kGather, 3, 4, kAllGather, 30},
  });
  ASSERT_EQ(timing.ops.size(), 2u);
  EXPECT_EQ(timing.ops[0].op(), kAllGather);
  EXPECT_DOUBLE_EQ(timing.ops[0].seconds(), 3);
  EXPECT_DOUBLE_EQ(timing.ops[0].exposed_seconds(), 3);  // No compute.
  EXPECT_EQ(timing.ops[0].bytes(), 50);
  EXPECT_EQ(timing.ops[0].count(), 2);
  EXPECT_EQ(timing.ops[1].op(), kReduceScatter);
  EXPECT_DOUBLE_EQ(timing.step_seconds, 4);
}

TEST(StepTiming, CommunicationOnComputeLaneIsExposed) {
  const StepTiming timing = SummariseStep({{LaneId::kCompute, 0, 4, kAllGather, 0}});
  EXPECT_DOUBLE_EQ(timing.compute_seconds, 0);
  EXPECT_DOUBLE_EQ(timing.ops[0].exposed_seconds(), 4);
}

TEST(StepTiming, AdjacentIntervalsCountOnce) {
  const StepTiming timing = SummariseStep({{LaneId::kCompute, 0, 2, kNone, 0},
                                           {LaneId::kCompute, 2, 3, kNone, 0},
                                           {LaneId::kGather, 1, 3, kAllGather, 0}});
  EXPECT_DOUBLE_EQ(timing.compute_seconds, 3);
  EXPECT_DOUBLE_EQ(timing.ops[0].exposed_seconds(), 0);
}

// The copies of a checkpoint extend into the next step.
TEST(StepTiming, ExcludesCopiesToHostMemory) {
  const std::vector<Span> spans = {{LaneId::kCompute, 0, 2, kNone, 0},
                                   {LaneId::kGather, 1, 3, kAllGather, 7},
                                   {LaneId::kCompute, 3, 4, kNone, 0}};
  const StepTiming without = SummariseStep(spans);
  std::vector<Span> copying = spans;
  copying.insert(copying.begin(), {LaneId::kCopy, 2.5, 9, kNone, 0});
  copying.push_back({LaneId::kCopy, 9, 30, kNone, 0});
  const StepTiming with = SummariseStep(copying);
  EXPECT_EQ(with.step_seconds, 4);
  EXPECT_EQ(with.compute_seconds, without.compute_seconds);
  EXPECT_EQ(with.exposed_seconds, 1);
  EXPECT_EQ(with.ops.size(), 1u);
  EXPECT_EQ(SummariseStep({{LaneId::kCopy, 1, 2, kNone, 0}}).step_seconds, 0);
}

}  // namespace
}  // namespace fsdpd
