// Claims of a job's former hosts: they stop nothing, and delay its next launch at most once.
#include "coordinator/testing/reconciler_case.h"

namespace fsdpd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class ReconcilerFormerHostTest : public ReconcilerCase {
 protected:
  void FailOnB() {
    Exit("b", "j", 0, 1, 2);
    Stopped("b", "j", 2);
    ASSERT_EQ(StateOf("j"), v1::JOB_STATE_QUEUED);
  }
  static std::vector<AttemptRef> Ghosts(const std::string& prefix, int count) {
    std::vector<AttemptRef> ghosts;
    for (int i = 0; i < count; ++i) ghosts.push_back({absl::StrCat(prefix, 1000 + i), 1});
    return ghosts;
  }
};

TEST_F(ReconcilerFormerHostTest, FormerHostCannotFailNewestAttempt) {
  MoveFromAToB();
  Attach("a", 1, {{"j", 3}});
  EXPECT_EQ(StopsSent("a").size(), 1u);
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_RUNNING);
  EXPECT_EQ(Job("j").failure().newer_attempt(), 0);
  EXPECT_FALSE(rendezvous_->Set({"j", 3}, "save/1", "evil").ok());
}

TEST_F(ReconcilerFormerHostTest, FormerHostDelaysNextLaunchOnce) {
  MoveFromAToB();
  FailOnB();
  Attach("a", 1, {{"j", 1}});
  Advance(absl::Seconds(74));
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_QUEUED);
  EXPECT_THAT(Job("j").reason(), HasSubstr("the remaining ranks of attempt 1 on a"));
  Attach("a", 1, {{"j", 1}});
  Advance(absl::Seconds(2));
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_STARTING);
  EXPECT_EQ(Job("j").attempt(), 3);
  EXPECT_EQ(Job("j").placements(0).node(), "b") << "the other node's slots may be in use";
}

TEST_F(ReconcilerFormerHostTest, RepeatedClaimsDoNotExtendDelay) {
  MoveFromAToB();
  FailOnB();
  Detach("b");
  outboxes_.clear();
  for (int claim = 0; claim < 4; ++claim) {
    Attach("a", 1, {{"j", 1}});
    ASSERT_TRUE(reconciler_->Cordon("a", "").ok());
    Advance(absl::Seconds(20));
    Stopped("a", "j", 1);
  }
  Attach("a", 1, {{"j", 1}});
  Attach("b", 1);
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_STARTING);
}

TEST_F(ReconcilerFormerHostTest, FormerHostCannotRaiseAttemptNumber) {
  MoveFromAToB();
  FailOnB();
  Attach("a", 1, {{"j", 3}});
  EXPECT_EQ(Job("j").attempt(), 2);
  Restart();
  for (int claim = 1; claim <= 4; ++claim) Attach("a", 1, {{"j", 2 + claim * kMaxAttemptsAhead}});
  EXPECT_EQ(Job("j").attempt(), 2 + kMaxAttemptsAhead) << "once, because the state may be from a backup";
}

TEST_F(ReconcilerFormerHostTest, WaitsForEarlierAttemptWithUnrecordedNode) {
  MoveFromAToB();
  v1::Job older = *store_->Get("j");
  older.clear_earlier_hosts();
  ASSERT_TRUE(store_->Update(older).ok());
  Restart();
  Attach("b", 1, {{"j", 2}});
  Attach("a", 1, {{"j", 1}});
  EXPECT_EQ(StopsSent("a").size(), 1u);
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_RUNNING);
  FailOnB();
  Advance(absl::Seconds(5));
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_QUEUED);
  EXPECT_THAT(Job("j").reason(), HasSubstr("the remaining ranks of attempt 1 on a"));
  Stopped("a", "j", 1);
  EXPECT_EQ(Job("j").attempt(), 3);
}

TEST_F(ReconcilerFormerHostTest, FailsJobAtLastAttemptNumber) {
  v1::Job job;
  job.set_id("j");
  job.set_state(v1::JOB_STATE_QUEUED);
  job.set_attempt(kMaxAttempt);
  ASSERT_TRUE(store_->Insert(job).ok());
  reconciler_->Submitted(job);
  reconciler_->RunOnce();
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_FAILED);
  EXPECT_THAT(Job("j").reason(), HasSubstr("at most 1000000 attempts"));
}

// Regression: its next launch waited forever for a node that never reported the end.
TEST_F(ReconcilerFormerHostTest, ClaimOfUnknownJobDelaysLaunchForLimitedTime) {
  Attach("x", 1, {{"ghost", 1}});
  Attach("b", 1);
  Submit("ghost", 1, 1);
  Advance(absl::Seconds(70));
  EXPECT_EQ(StateOf("ghost"), v1::JOB_STATE_QUEUED);
  EXPECT_THAT(Job("ghost").reason(), HasSubstr("the remaining ranks of attempt 1 on x"));
  Advance(absl::Seconds(10));
  ASSERT_EQ(StateOf("ghost"), v1::JOB_STATE_STARTING);
  EXPECT_EQ(Job("ghost").placements(0).node(), "b");
  Exit("b", "ghost", 0, 1);
  Stopped("b", "ghost");
  Advance(absl::Seconds(1));
  ASSERT_EQ(StateOf("ghost"), v1::JOB_STATE_FAILED);
  Attach("b", 1, {{"ghost", 1}});  // It never reports the end.
  Attach("c", 1);
  ASSERT_TRUE(reconciler_->Retry("ghost", "").ok());
  Advance(absl::Seconds(70));
  EXPECT_EQ(StateOf("ghost"), v1::JOB_STATE_QUEUED);
  Advance(absl::Seconds(10));
  EXPECT_EQ(StateOf("ghost"), v1::JOB_STATE_STARTING);
}

// Regression: the agent rejected the ranks placed there, because its slots were not free yet.
TEST_F(ReconcilerFormerHostTest, NodeWithRejectedAttemptGetsNoJobUntilRanksHadTimeToLeave) {
  RunOn({"b"});
  Attach("x", 1, {{"j", 1}});
  EXPECT_EQ(StopsSent("x").size(), 1u);
  Submit("k", 1, 1);
  Advance(absl::Seconds(11));
  EXPECT_EQ(StateOf("k"), v1::JOB_STATE_QUEUED);
  EXPECT_EQ(nodes_->Snapshot()[1].free_slots, 0);
  Exit("x", "j", 0, 1);
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_RUNNING) << "its report about the attempt does not count";
  EXPECT_EQ(reconciler_->Preflight("x").code(), absl::StatusCode::kFailedPrecondition);
  Advance(absl::Seconds(2));
  EXPECT_EQ(StateOf("k"), v1::JOB_STATE_STARTING);
}

// Regression: it logged a line for each rank and message, at any rate, and counted none.
TEST_F(ReconcilerFormerHostTest, InvalidComputeTimesAreCountedAndLoggedOnce) {
  RunOn({"b"});
  v1::ComputeTimes times;
  times.set_job_id("j");
  times.set_attempt(1);
  for (int rank = 0; rank < 8; ++rank) {
    times.add_ranks()->set_rank(rank);
    times.mutable_ranks(rank)->set_seconds(-1);
  }
  testing::internal::CaptureStderr();
  for (int message = 0; message < 3; ++message) reconciler_->OnReport("b", times);
  reconciler_->RunOnce();
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, HasSubstr("rejected invalid compute times node=b job=j"));
  EXPECT_EQ(log.find("compute times"), log.rfind("compute times"));
  EXPECT_EQ(RefusedFromAgents("compute_times"), 3);
}

// Regression: each claim listed all slots of its node, and 4,096 of them slowed down every tick.
TEST_F(ReconcilerFormerHostTest, KeepsFewOfThousandsOfUnknownAttempts) {
  Attach("x", 8, Ghosts("first", 4096));
  EXPECT_EQ(StopsSent("x").size(), 4096u);
  EXPECT_EQ(RefusedFromAgents("registration"), 4096 - 64);
  Advance(absl::Seconds(5));
  EXPECT_EQ(StopsSent("x").size(), 64u) << "a stop is repeated for each retained attempt";
  EXPECT_EQ(nodes_->Snapshot()[0].free_slots, 0);
}

TEST_F(ReconcilerFormerHostTest, NewRegistrationReplacesUnknownAttempts) {
  for (int i = 0; i < 20; ++i) Attach("x", 8, Ghosts(absl::StrCat("at-", i, "-"), 64));
  EXPECT_EQ(StopsSent("x").size(), 64u) << "the last registration's are stopped";
  EXPECT_EQ(RefusedFromAgents("registration"), 0) << "those of earlier registrations do not count";
  Advance(absl::Seconds(5));
  std::set<std::string> kept;
  for (const v1::Stop& stop : StopsSent("x")) kept.insert(stop.job_id().substr(0, 5));
  EXPECT_THAT(kept, ElementsAre("at-19"));
  Attach("x", 8);
  Submit("j", 1, 8);
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_STARTING) << "it hosts nothing any more";
}

TEST_F(ReconcilerFormerHostTest, KeepsUnknownAttemptPerSlot) {
  Attach("x", 100, Ghosts("ghost", 100));
  EXPECT_EQ(RefusedFromAgents("registration"), 0);
  Attach("x", 100, Ghosts("ghost", 101));
  EXPECT_EQ(RefusedFromAgents("registration"), 1) << "those of the previous registration count";
}

TEST_F(ReconcilerFormerHostTest, RejectsAttemptWithInvalidJobId) {
  Attach("x", 8, {{std::string(65, 'j'), 1}});
  EXPECT_EQ(RefusedFromAgents("registration"), 1);
  EXPECT_EQ(StopsSent("x").size(), 1u);
}

}  // namespace
}  // namespace fsdpd
