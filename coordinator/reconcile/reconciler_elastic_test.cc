// Elastic jobs: they continue with fewer ranks, and get all of them back.
#include <absl/strings/match.h>

#include <algorithm>

#include "coordinator/testing/reconciler_case.h"

namespace fsdpd {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;
using Waiting = v1::Job::Waiting;

class ReconcilerElasticTest : public ReconcilerCase {
 protected:
  std::string SubmitElastic(const std::string& id, int nodes, int ranks, int min_ranks,
                            const std::string& project = "") {
    v1::Job job;
    job.set_id(id);
    job.set_project(project);
    job.set_state(v1::JOB_STATE_QUEUED);
    job.set_revision(1);
    job.set_create_unix_nanos(absl::ToUnixNanos(clock_.Wall()) + ++submits_);
    auto* spec = job.mutable_spec();
    spec->mutable_train()->set_steps(100);
    spec->mutable_resources()->set_nodes(nodes);
    spec->mutable_resources()->set_ranks_per_node(ranks);
    spec->mutable_resources()->set_device(v1::DEVICE_CPU);
    spec->mutable_checkpoint()->set_dir("/runs/" + id);
    spec->mutable_checkpoint()->set_every_steps(1);
    spec->mutable_restart()->set_max_attempts(20);
    spec->mutable_restart()->mutable_elastic()->set_min_ranks(min_ranks);
    EXPECT_TRUE(store_->Insert(job).ok());
    board_->Publish(job);
    reconciler_->Submitted(job);
    reconciler_->RunOnce();
    return id;
  }
  void Settle() { Advance(options_.reattach_grace + absl::Seconds(1)); }
  // The node does not reconnect.
  void Lose(const std::string& node) {
    Detach(node);
    outboxes_.erase(node);
    Advance(absl::Seconds(30));
  }
  // The remaining ranks of an attempt are stopped and exit.
  void Clear(const std::string& node, const std::string& id, int rank, int attempt) {
    Exit(node, id, rank, 143, attempt);
    Stopped(node, id, attempt);
  }
  int Ranks(const std::string& id) {
    const v1::Job job = Job(id);
    int ranks = 0;
    for (const v1::Job::Placement& placement : job.placements()) ranks += placement.ranks();
    return ranks;
  }
  // Job "j" has a rank on each of two nodes, and "b" is lost: its first attempt is over.
  void LoseHalf(const std::string& project = "") {
    Attach("a", 1);
    Attach("b", 1);
    Settle();
    SubmitElastic("j", 2, 1, 1, project);
    ASSERT_EQ(StateOf("j"), v1::JOB_STATE_STARTING);
    Lose("b");
    Clear("a", "j", 0, 1);
    ASSERT_EQ(StateOf("j"), v1::JOB_STATE_QUEUED) << Job("j").reason();
  }
  // Continues it with one rank.
  void Shrink() {
    LoseHalf();
    Advance(absl::Seconds(70));
    ASSERT_EQ(StateOf("j"), v1::JOB_STATE_STARTING) << Job("j").reason();
    ASSERT_TRUE(Job("j").has_shrunk());
  }
};

TEST_F(ReconcilerElasticTest, ShrinksAfterWaitingForAllRanks) {
  LoseHalf();
  Advance(absl::Seconds(30));
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_QUEUED);
  EXPECT_THAT(Job("j").reason(), HasSubstr("continues with fewer ranks after waiting 1m"));
  v1::Job waits = Job("j");
  board_->AddWaiting(&waits);
  EXPECT_EQ(waits.waiting().code(), Waiting::CODE_NODES);
  EXPECT_GT(waits.waiting().not_before_unix_nanos(), absl::ToUnixNanos(clock_.Wall())) << "it shrinks then";
  Sent("a");
  Advance(absl::Seconds(40));
  ASSERT_EQ(StateOf("j"), v1::JOB_STATE_STARTING);
  const std::vector<v1::Launch> launches = LaunchesSent("a");
  ASSERT_THAT(launches, SizeIs(1));
  EXPECT_EQ(launches[0].world_size(), 1);
  EXPECT_EQ(launches[0].spec().resources().nodes(), 1);
  EXPECT_EQ(launches[0].spec().train().global_batch(), 2) << "the same number of samples per step";
  const v1::Job launched = Job("j");
  EXPECT_TRUE(std::any_of(launched.events().begin(), launched.events().end(), [](const auto& event) {
    return absl::StrContains(event.message(),
                             "launching 1 of 2 ranks on a, because not all are available: needs 2 nodes");
  }));
  EXPECT_EQ(Job("j").shrunk().resolved().resources().nodes(), 2);
  EXPECT_EQ(Job("j").failed_attempts(0).ranks(), 2);
  EXPECT_EQ(Job("j").spec().resources().nodes(), 2) << "the submitted spec does not change";
}

TEST_F(ReconcilerElasticTest, ReconnectInTimeRestoresNode) {
  LoseHalf();
  Advance(absl::Seconds(30));
  Attach("c", 1);
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_STARTING);
  EXPECT_EQ(Ranks("j"), 2);
  EXPECT_FALSE(Job("j").has_shrunk());
}

TEST_F(ReconcilerElasticTest, NextLaunchHasAllRanksAgain) {
  Shrink();
  Attach("b", 1);
  Advance(absl::Minutes(5));
  EXPECT_EQ(Ranks("j"), 1) << "running jobs are not touched";
  ASSERT_TRUE(Pause("j").ok());
  Clear("a", "j", 0, 2);
  ASSERT_TRUE(Resume("j").ok());
  reconciler_->RunOnce();
  ASSERT_EQ(StateOf("j"), v1::JOB_STATE_STARTING);
  EXPECT_EQ(Ranks("j"), 2);
  EXPECT_FALSE(Job("j").has_shrunk());
  EXPECT_EQ(Job("j").resolved().resources().nodes(), 2);
  EXPECT_THAT(Job("j").reason(), HasSubstr("launching 2 ranks on a, b, its full world size again"));
}

TEST_F(ReconcilerElasticTest, ShrunkJobWaitsNoLongerAlsoAfterRestart) {
  Shrink();
  Exit("a", "j", 0, 1, 2);
  Advance(absl::Seconds(1));
  Stopped("a", "j", 2);
  Restart();
  Attach("a", 1);
  Settle();
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_STARTING);
  EXPECT_EQ(Ranks("j"), 1);
  EXPECT_EQ(Job("j").failed_attempts(1).ranks(), 1);
  EXPECT_TRUE(Job("j").has_shrunk());
}

TEST_F(ReconcilerElasticTest, PausedOrNewJobWaitsForAllRanks) {
  Attach("a", 1);
  Attach("b", 1);
  Settle();
  SubmitElastic("j", 2, 1, 1);
  ASSERT_TRUE(Pause("j").ok());
  Clear("a", "j", 0, 1);
  Clear("b", "j", 1, 1);
  Lose("b");
  ASSERT_TRUE(Resume("j").ok());
  SubmitElastic("new", 2, 1, 1);
  Advance(absl::Minutes(5));
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_QUEUED);
  EXPECT_EQ(StateOf("new"), v1::JOB_STATE_QUEUED);
}

TEST_F(ReconcilerElasticTest, ReservesShrunkWorldWhileWaiting) {
  LoseHalf();
  Advance(absl::Seconds(5));  // It reserves nothing before its retry delay ends.
  Submit("other", 1, 1);
  EXPECT_EQ(StateOf("other"), v1::JOB_STATE_QUEUED) << "it would take the remaining slot";
  Advance(absl::Seconds(70));
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_STARTING);
  EXPECT_EQ(StateOf("other"), v1::JOB_STATE_QUEUED);
}

TEST_F(ReconcilerElasticTest, SkipsWorldSizeWithoutValidPlan) {
  plan_ = [](const v1::JobSpec& spec, int64_t) {
    Plan plan;
    plan.resolved = WithDefaults(spec, nullptr);
    if (spec.resources().nodes() == 2)
      plan.violations.push_back(
          {"memory_over_budget", ViolationLevel::kError, "resources", "too large", "", "", ""});
    return plan;
  };
  for (const char* node : {"a", "b", "c", "d"}) Attach(node, 1);
  Settle();
  SubmitElastic("j", 4, 1, 1);
  Lose("d");
  for (int rank = 0; rank < 3; ++rank) Clear(std::string(1, static_cast<char>('a' + rank)), "j", rank, 1);
  Advance(absl::Seconds(90));
  ASSERT_EQ(StateOf("j"), v1::JOB_STATE_STARTING) << Job("j").reason();
  EXPECT_EQ(Ranks("j"), 1) << "3 do not divide 4 samples, and 2 hold too little";
}

TEST_F(ReconcilerElasticTest, RespectsQuota) {
  quotas_ = {{"vision", 2}};
  LoseHalf("vision");
  Advance(absl::Seconds(70));
  ASSERT_EQ(Ranks("j"), 1);
  Attach("b", 2);
  quotas_ = {{"vision", 1}};
  ASSERT_TRUE(Pause("j").ok());
  Clear("a", "j", 0, 2);
  ASSERT_TRUE(Resume("j").ok());
  reconciler_->RunOnce();
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_STARTING);
  EXPECT_EQ(Ranks("j"), 1);
  EXPECT_THAT(Job("j").shrunk().reason(), HasSubstr("the quota of project vision does not allow all ranks"));
}

}  // namespace
}  // namespace fsdpd
