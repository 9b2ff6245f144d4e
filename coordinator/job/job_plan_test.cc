#include "coordinator/job/job_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "coordinator/testing/tiny_spec.h"

namespace fsdpd {
namespace {

TEST(JobPlan, RequestUsesTheBytesOfTheStoredPlan) {
  v1::Job job;
  *job.mutable_spec() = TinySpec();
  EXPECT_TRUE(IsPlanOpen(job));
  EXPECT_EQ(RequestOf(job).nodes, 1);
  EXPECT_EQ(RequestOf(job).bytes_per_rank, 0);
  const Plan plan = MakePlan(job.spec(), int64_t{1} << 30);
  KeepPlan(plan, /*open=*/true, &job);
  EXPECT_EQ(RequestOf(job).bytes_per_rank, 0) << "it may still change";
  KeepPlan(plan, /*open=*/false, &job);
  EXPECT_FALSE(IsPlanOpen(job));
  EXPECT_EQ(RequestOf(job).bytes_per_rank, plan.memory.peak_bytes);
  EXPECT_EQ(job.memory_plan().peak_bytes(), plan.memory.peak_bytes);
}

// An offer is the free memory of a device; a plan on cuda counts the part that may be used.
TEST(JobPlan, CudaSlotNeedsMemoryForProcessAndMargin) {
  v1::JobSpec spec = TinySpec();
  spec.mutable_resources()->set_device(v1::DEVICE_CUDA);
  constexpr int64_t kOffer = int64_t{3} << 30;
  v1::Job job;
  const Plan plan = MakePlan(spec, kOffer);
  KeepPlan(plan, /*open=*/false, &job);
  const int64_t process = OfferNeeded(plan.resolved, 0, /*margin=*/true);
  EXPECT_GT(process, 0);
  EXPECT_GT(RequestOf(job).bytes_per_rank, plan.memory.peak_bytes + process);
  EXPECT_LE(RequestOf(job).bytes_per_rank, (plan.memory.peak_bytes * 100 + 97) / 98 + process + 100);
}

TEST(JobPlan, DistinguishesTooLargeFromOtherErrors) {
  v1::JobSpec spec = TinySpec();
  const Plan large = MakePlan(spec, 4096);
  EXPECT_TRUE(IsOnlyTooLarge(large));
  EXPECT_THAT(WhyRefused(large), ::testing::StartsWith("resources.memory_budget_bytes: a step needs "));
  spec.set_name("Not A Name");
  EXPECT_FALSE(IsOnlyTooLarge(MakePlan(spec, 4096)));
  spec.mutable_train()->set_steps(-1);
  EXPECT_THAT(
      WhyRefused(MakePlan(spec, 0)),
      ::testing::MatchesRegex("2 errors:\n  [a-z.]*(name|steps): [^\n]*\n  [a-z.]*(name|steps): [^\n]*"));
}

TEST(JobPlan, StepsOfEpochsSurviveReplans) {
  v1::Job job;
  job.mutable_spec()->mutable_train()->set_epochs(2);
  KeepSteps(30, &job);  // Nothing is planned yet.
  EXPECT_FALSE(job.has_resolved());
  Plan plan;
  *plan.resolved.mutable_train() = job.spec().train();
  KeepPlan(plan, /*open=*/false, &job);
  EXPECT_TRUE(job.resolved().train().has_epochs());
  *job.mutable_shrunk()->mutable_resolved() = job.resolved();
  KeepSteps(int64_t{1} << 40, &job);  // No job has so many.
  KeepSteps(30, &job);
  KeepSteps(0, &job);   // An agent of an older release.
  KeepSteps(31, &job);  // They never change.
  KeepPlan(plan, /*open=*/false, &job);
  for (const v1::JobSpec& spec : {job.resolved(), job.shrunk().resolved()}) {
    EXPECT_EQ(spec.train().steps(), 30);
    EXPECT_FALSE(spec.train().has_epochs());
  }
  EXPECT_EQ(job.spec().train().epochs(), 2);
  v1::Job with_steps;
  with_steps.mutable_spec()->mutable_train()->set_steps(7);
  *with_steps.mutable_resolved() = with_steps.spec();
  KeepSteps(30, &with_steps);
  EXPECT_EQ(with_steps.resolved().train().steps(), 7);
}

TEST(JobPlan, FilledSpecOfUnplannedJobHasDefaults) {
  EXPECT_EQ(FilledSpec(v1::Job()).resources().nodes(), 1);
  EXPECT_EQ(FilledSpec(v1::Job()).restart().max_attempts(), 1);
}

}  // namespace
}  // namespace fsdpd
