#include "coordinator/agents/trace_order.h"

#include <gtest/gtest.h>

namespace fsdpd {
namespace {

v1::Job Running(int64_t step, double step_seconds, int64_t steps = 100000) {
  v1::Job job;
  job.set_id("tiny-1");
  job.set_state(v1::JOB_STATE_RUNNING);
  job.mutable_spec()->mutable_train()->set_steps(steps);
  job.mutable_spec()->mutable_resources()->set_nodes(2);
  job.mutable_spec()->mutable_resources()->set_ranks_per_node(3);
  *job.mutable_resolved() = job.spec();
  job.mutable_last_step()->set_step(step);
  job.mutable_last_step()->set_step_seconds(step_seconds);
  return job;
}

TEST(TraceOrder, LongStepsAreTheNextOnes) {
  const auto order = OrderTrace(Running(10, 60), 2);
  ASSERT_TRUE(order.ok()) << order.status();
  EXPECT_EQ(order->first_step(), 13);
  EXPECT_EQ(order->steps(), 2);
  EXPECT_EQ(order->ranks(), 6);
}

TEST(TraceOrder, ShortStepsStartAfterDelivery) {
  EXPECT_EQ(OrderTrace(Running(10, 0.001), 1)->first_step(), 10 + 2 + 1000);
  EXPECT_EQ(OrderTrace(Running(10, 0, 1'000'000), 1)->first_step(), 10 + 2 + 100000);
}

TEST(TraceOrder, EndsWithTheJob) {
  EXPECT_EQ(OrderTrace(Running(10, 60, 13), 5)->steps(), 1);
  const absl::Status late = OrderTrace(Running(10, 60, 12), 5).status();
  EXPECT_EQ(late.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(late.message().find("ends with step 12"), std::string::npos) << late;
}

TEST(TraceOrder, RejectsJobWithoutSteps) {
  v1::Job job = Running(10, 1);
  job.set_state(v1::JOB_STATE_STARTING);
  EXPECT_EQ(OrderTrace(job, 1).status().code(), absl::StatusCode::kFailedPrecondition);
  job = Running(0, 0);
  EXPECT_EQ(OrderTrace(job, 1).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST(TraceOrder, BoundsSteps) {
  for (const int64_t steps : {int64_t{0}, int64_t{-1}, int64_t{17}, int64_t{1} << 62})
    EXPECT_EQ(OrderTrace(Running(10, 1), steps).status().code(), absl::StatusCode::kInvalidArgument) << steps;
}

}  // namespace
}  // namespace fsdpd
