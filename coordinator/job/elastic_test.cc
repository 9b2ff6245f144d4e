#include "coordinator/job/elastic.h"

#include <gtest/gtest.h>

namespace fsdpd {
namespace {

v1::Job Launched() {
  v1::Job job;
  job.mutable_spec()->mutable_restart()->mutable_elastic()->set_min_ranks(1);
  job.mutable_spec()->mutable_resources()->set_nodes(4);
  *job.mutable_resolved() = job.spec();
  job.mutable_resolved()->mutable_resources()->set_ranks_per_node(1);
  job.mutable_memory_plan()->set_peak_bytes(7);
  job.set_attempt(2);
  return job;
}

TEST(Elastic, ShrinksOnlyAfterAFailedAttempt) {
  v1::Job job = Launched();
  EXPECT_FALSE(MayShrink(job)) << "it was paused, or has never run";
  job.mutable_failure()->set_attempt(1);
  EXPECT_FALSE(MayShrink(job)) << "the failure is of another attempt";
  job.mutable_failure()->set_attempt(2);
  EXPECT_TRUE(MayShrink(job));
  EXPECT_EQ(ShrinkWait(job), absl::Seconds(60));
  job.mutable_spec()->mutable_restart()->clear_elastic();
  EXPECT_FALSE(MayShrink(job));
}

TEST(Elastic, RetainsThePlanOfAllRanks) {
  v1::Job job = Launched();
  Plan plan;
  plan.resolved = InWorld(job.spec(), {2, 1});
  KeepShrunk(plan, "two are gone", &job);
  EXPECT_TRUE(IsIn({2, 1}, job));
  EXPECT_TRUE(job.memory_margin());
  EXPECT_EQ(RanksOf(job), 2);
  EXPECT_EQ(AllRanksOf(job), 4);
  EXPECT_TRUE(MayShrink(job)) << "regardless of its last attempt's end";
  EXPECT_EQ(ShrinkWait(job), absl::ZeroDuration());
  plan.resolved = InWorld(job.spec(), {1, 1});
  KeepShrunk(plan, "three are gone", &job);
  EXPECT_EQ(RanksOf(job), 1);
  const v1::Job whole = WithAllRanks(job);
  EXPECT_EQ(RanksOf(whole), 4);
  EXPECT_EQ(whole.memory_plan().peak_bytes(), 7);
  EXPECT_FALSE(whole.memory_margin()) << "the plan is of a release without it";
  EXPECT_FALSE(whole.has_shrunk());
}

}  // namespace
}  // namespace fsdpd
