// Jobs whose agents, or whose coordinator, are away for a while: leases, pauses, restarts, clock changes.
#include <algorithm>

#include "base/limits.h"
#include "coordinator/testing/reconciler_case.h"

namespace fsdpd {
namespace {

using ::testing::HasSubstr;

using ReconcilerOutageTest = ReconcilerCase;

TEST_F(ReconcilerOutageTest, RetryDelayIsTheSameAfterRestart) {
  options_.reattach_grace = absl::ZeroDuration();
  Attach("a", 1);
  Submit("j", 1, 1, /*max_attempts=*/2);
  Exit("a", "j", 0, 1);
  Stopped("a", "j");
  Restart();
  Attach("a", 1);
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_QUEUED);
  Advance(absl::Seconds(1));
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_STARTING);
}

TEST_F(ReconcilerOutageTest, EventDatesFollowTheirCausesWithClockBehind) {
  RunOn({"a"});
  ASSERT_TRUE(reconciler_->Cordon("a", "a fan").ok());
  clock_.StepWall(-absl::Hours(1));
  Restart();
  Attach("a", 1, {{"j", 1}});
  ASSERT_TRUE(reconciler_->Uncordon("a").ok());
  Exit("a", "j", 0, 1);
  Stopped("a", "j");
  int64_t before = 0;
  const Events events = store_->events().Read({})->events;
  for (const v1::Event& event : events) {
    EXPECT_GE(event.unix_nanos(), before) << event.ShortDebugString();
    before = event.unix_nanos();
  }
  EXPECT_EQ(Job("j").events().rbegin()->unix_nanos(), before);
  EXPECT_EQ(events.back().kind(), v1::EVENT_KIND_FAILED);
}

// Its agent may still train it: the state may be older than its launch, as after a restore from a backup.
TEST_F(ReconcilerOutageTest, LaunchesWaitingJobAfterReattachGrace) {
  Submit("j", 1, 1);
  Restart();
  Attach("b", 1);
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_QUEUED);
  EXPECT_THAT(Job("j").reason(),
              HasSubstr("waiting for agents to reconnect after the coordinator's restart"));
  Submit("later", 1, 1);
  EXPECT_EQ(StateOf("later"), v1::JOB_STATE_QUEUED) << "it passes no job";
  Attach("a", 1, {{"j", 1}});
  EXPECT_EQ(StopsSent("a").size(), 1u);
  Stopped("a", "j");
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_QUEUED) << "other nodes may know a newer attempt";
  Advance(options_.reattach_grace + absl::Seconds(1));
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_STARTING);
  EXPECT_EQ(Job("j").attempt(), 2);
}

// The first had ended long ago, but that was not reported.
TEST_F(ReconcilerOutageTest, NamesReportedAttemptOfSeveralLeftovers) {
  Attach("a", 1);
  Submit("j", 1, 1, /*max_attempts=*/3);
  Ready("a", "j", 0);
  Detach("a");
  outboxes_.clear();
  Advance(absl::Seconds(20));
  Attach("b", 1);
  Advance(absl::Seconds(5));
  ASSERT_EQ(Job("j").attempt(), 2);
  Ready("b", "j", 0, 2);
  Attach("a", 1, {{"j", 1}});
  Detach("b");
  outboxes_.erase("b");
  Advance(absl::Seconds(20));
  ASSERT_EQ(StateOf("j"), v1::JOB_STATE_QUEUED);
  EXPECT_THAT(Job("j").reason(), HasSubstr("the remaining ranks of attempt 1 on a"));
  Attach("b", 1, {{"j", 2}});
  reconciler_->RunOnce();
  EXPECT_THAT(Job("j").reason(), HasSubstr("the remaining ranks of attempt 2 on b"));
}

TEST_F(ReconcilerOutageTest, NextAttemptWaitsForLeftoversOfReconnectedNode) {
  Attach("a", 1);
  Submit("j", 1, 1, /*max_attempts=*/2);
  Ready("a", "j", 0);
  Detach("a");
  outboxes_.clear();
  Advance(absl::Seconds(20));
  ASSERT_EQ(StateOf("j"), v1::JOB_STATE_QUEUED);
  Attach("a", 1, {{"j", 1}});
  Attach("b", 1);
  Submit("k", 1, 1);
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_QUEUED) << "its first attempt is still running";
  EXPECT_THAT(Job("j").reason(), HasSubstr("the remaining ranks of attempt 1 on a"));
  EXPECT_EQ(StateOf("k"), v1::JOB_STATE_STARTING) << "others need not wait for that";
  Stopped("a", "j");
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_STARTING);
  EXPECT_EQ(Job("j").attempt(), 2);
}

// Regression (tests/sim, seed 20180): it was CANCELLED immediately, and its rank lived through its grace.
TEST_F(ReconcilerOutageTest, CancelWaitsForLeftoversOfReconnectedAttempt) {
  for (const bool paused : {false, true}) {
    const std::string id = paused ? "paused" : "waits", a = id + "-a", b = id + "-b";
    Attach(a, 1);
    Attach(b, 1);
    Submit(id, 2, 1, /*max_attempts=*/2);
    Ready(a, id, 0);
    Ready(b, id, 1);
    Detach(a);
    Detach(b);
    outboxes_.clear();
    Advance(absl::Seconds(20));
    ASSERT_EQ(StateOf(id), v1::JOB_STATE_QUEUED);
    if (paused) reconciler_->Pause(id, "", 1000).IgnoreError();
    Attach(a, 1, {{id, 1}});
    EXPECT_EQ(Cancel(id)->state(), v1::JOB_STATE_CANCELLING);
    EXPECT_THAT(Job(id).reason(), HasSubstr("stopping what is left of it"));
    Attach(b, 1, {{id, 1}});
    EXPECT_EQ(StopsSent(b).size(), 1u);
    Stopped(a, id);
    EXPECT_EQ(StateOf(id), v1::JOB_STATE_CANCELLING) << "the other node has reconnected too";
    Advance(absl::Seconds(3));
    Stopped(b, id);
    EXPECT_EQ(StateOf(id), v1::JOB_STATE_CANCELLED);
    EXPECT_EQ(Job(id).end_unix_nanos(), absl::ToUnixNanos(clock_.Wall()));
    Detach(a);
    Detach(b);
  }
}

// The attempt before the newest, in the same tick as its reconnect.
TEST_F(ReconcilerOutageTest, CancelWaitsForLeftoversOfEarlierAttempt) {
  MoveFromAToB();
  Exit("b", "j", 0, 1, 2);
  Stopped("b", "j", 2);
  ASSERT_EQ(StateOf("j"), v1::JOB_STATE_QUEUED);
  Attach("a", 1, {{"j", 1}});
  EXPECT_EQ(Cancel("j")->state(), v1::JOB_STATE_CANCELLING);
  Advance(absl::Seconds(1));
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_CANCELLING);
  Stopped("a", "j");
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_CANCELLED);
}

TEST_F(ReconcilerOutageTest, LostAgentFailsJobAndItsRanksStopAtReconnect) {
  RunOn({"a"});
  Detach("a");
  outboxes_.clear();
  Advance(absl::Seconds(5));
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_RUNNING);
  EXPECT_THAT(Job("j").reason(), HasSubstr("waits for the agent of a"));
  Advance(absl::Milliseconds(kAgentLostAfterMs));
  Advance(absl::Milliseconds(1));
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_FAILED);
  EXPECT_THAT(Job("j").failure().error(), HasSubstr("node a is lost"));
  Attach("a", 1, {{"j", 1}});
  EXPECT_EQ(StopsSent("a").size(), 1u);
  EXPECT_EQ(nodes_->Snapshot()[0].free_slots, 0);
  Stopped("a", "j");
  EXPECT_EQ(nodes_->Snapshot()[0].free_slots, 1);
}

TEST_F(ReconcilerOutageTest, DetectsAgentGoneAfterMessageWithinTenSeconds) {
  RunOn({"a", "b"});
  outboxes_.erase("a");
  const absl::Time begin = clock_.Now();
  while (StateOf("j") == v1::JOB_STATE_RUNNING && clock_.Now() - begin < absl::Minutes(1))
    Advance(ReconcilerOptions().tick);
  EXPECT_THAT(Job("j").failure().error(),
              HasSubstr("node a is lost: its agent was not heard from for 9.5 s"));
  EXPECT_LT(clock_.Now() - begin, absl::Milliseconds(kAgentLostAfterMs));
}

TEST_F(ReconcilerOutageTest, ForwardClockChangeFailsNoJob) {
  RunOn({"a", "b"});
  Detach("b");
  clock_.StepWall(absl::Seconds(60));
  reconciler_->RunOnce();
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_RUNNING);
  EXPECT_TRUE(nodes_->Snapshot()[0].connected);
  EXPECT_EQ(Job("j").events().rbegin()->unix_nanos(), absl::ToUnixNanos(clock_.Wall()));
}

TEST_F(ReconcilerOutageTest, BackwardClockChangeDoesNotHideDeadAgent) {
  RunOn({"a"});
  Detach("a");
  outboxes_.clear();
  clock_.StepWall(-absl::Seconds(40));
  Advance(absl::Milliseconds(kAgentLostAfterMs + 1));
  Advance(absl::Milliseconds(1));
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_FAILED);
  EXPECT_THAT(Job("j").failure().error(), HasSubstr("node a is lost"));
}

TEST_F(ReconcilerOutageTest, PauseOfCoordinatorLosesNoJob) {
  RunOn({"a", "b"});
  StallRank(absl::Seconds(60));
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_RUNNING);
  EXPECT_TRUE(nodes_->Snapshot()[0].connected);
  // The agents closed their streams, which is noticed now, and reconnect.
  Detach("a");
  Detach("b");
  outboxes_.clear();
  Advance(absl::Seconds(14));
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_RUNNING);
  Attach("a", 1, {{"j", 1}});
  Attach("b", 1, {{"j", 1}});
  Advance(absl::Seconds(60));
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_RUNNING);
  EXPECT_EQ(Job("j").attempt(), 1);
}

TEST_F(ReconcilerOutageTest, AgentThatDiedDuringPauseIsLostAfterGrace) {
  RunOn({"a"});
  StallRank(absl::Seconds(60));
  Detach("a");
  outboxes_.clear();
  Advance(absl::Seconds(17));
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_FAILED);
  EXPECT_THAT(Job("j").failure().error(), HasSubstr("node a is lost"));
}

TEST_F(ReconcilerOutageTest, JudgesFailureBeforePauseWithLaterArrivals) {
  StartOn({"a", "b"});
  v1::RankUpdate of_peer = Update("j", 0);
  of_peer.mutable_exit()->set_exit_code(1);
  reconciler_->OnReport("a", of_peer, 0);
  reconciler_->RunOnce();
  StallRank(absl::Seconds(60));
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_STARTING);
  v1::RankUpdate of_cause = Update("j", 1);
  of_cause.mutable_exit()->set_exit_code(1);
  of_cause.mutable_exit()->set_unix_nanos(absl::ToUnixNanos(clock_.Wall()));
  reconciler_->OnReport("b", of_cause, absl::ToUnixNanos(clock_.Wall() + absl::Seconds(61)));
  Advance(absl::Seconds(1));
  EXPECT_EQ(Job("j").failure().rank(), 1);
}

TEST_F(ReconcilerOutageTest, JudgesFailureQueuedDuringPauseAfterSettling) {
  StartOn({"a", "b"});
  v1::RankUpdate of_peer = Update("j", 0);
  of_peer.mutable_exit()->set_exit_code(1);
  reconciler_->OnReport("a", of_peer, 0);
  StallRank(absl::Seconds(60));
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_STARTING);
  Advance(absl::Seconds(1));
  EXPECT_EQ(Job("j").failure().rank(), 0);
}

TEST_F(ReconcilerOutageTest, ShortDisconnectHasNoEffect) {
  RunOn({"a"});
  Detach("a");
  reconciler_->RunOnce();
  Attach("a", 1, {{"j", 1}});
  Advance(absl::Seconds(60));
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_RUNNING);
  EXPECT_EQ(Job("j").attempt(), 1);
}

TEST_F(ReconcilerOutageTest, ReconnectWithoutRanksFailsJob) {
  RunOn({"a"});
  Detach("a");
  Attach("a", 1);
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_RUNNING);
  Advance(absl::Seconds(2));
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_STOPPING);
  Stopped("a", "j");
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_FAILED);
}

TEST_F(ReconcilerOutageTest, RunningJobSurvivesRestart) {
  RunOn({"a", "b"});
  Restart();
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_RUNNING);
  Attach("a", 1, {{"j", 1}});
  Attach("b", 1, {{"j", 1}});
  Advance(absl::Seconds(60));
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_RUNNING);
  EXPECT_EQ(Job("j").attempt(), 1);
  EXPECT_TRUE(LaunchesSent("a").empty());
  Exit("a", "j", 0, 0);
  Exit("b", "j", 1, 0);
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_SUCCEEDED);
}

TEST_F(ReconcilerOutageTest, ExitDuringOutageIsProcessedAfterwards) {
  RunOn({"a"});
  Restart();
  Attach("a", 1);  // Its rank has ended meanwhile; the report follows.
  Exit("a", "j", 0, 0);
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_SUCCEEDED);
}

TEST_F(ReconcilerOutageTest, EndDuringOutageKeepsItsTime) {
  RunOn({"a"});
  Detach("a");
  outboxes_.clear();
  Advance(absl::Seconds(2));
  v1::RankUpdate exit = Update("j", 0);
  exit.mutable_exit()->set_unix_nanos(1000);  // Its clock differs from the coordinator's.
  const absl::Time ended = clock_.Wall();
  Advance(absl::Seconds(5));
  Attach("a", 1, {{"j", 1}});
  reconciler_->OnReport("a", exit, 1000 + 5'000'000'000);
  reconciler_->RunOnce();
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_SUCCEEDED);
  EXPECT_EQ(Job("j").end_unix_nanos(), absl::ToUnixNanos(ended));
}

TEST_F(ReconcilerOutageTest, RejectsEndBeforeStart) {
  StartOn({"a"});
  Advance(absl::Seconds(1));
  v1::RankUpdate exit = Update("j", 0);
  exit.mutable_exit()->set_unix_nanos(1);
  reconciler_->OnReport("a", exit, 3600'000'000'000);
  reconciler_->RunOnce();
  EXPECT_EQ(Job("j").end_unix_nanos(), Job("j").start_unix_nanos());
}

TEST_F(ReconcilerOutageTest, JobFailsIfAgentsDoNotReconnectWithinGrace) {
  RunOn({"a"});
  Restart();
  Advance(absl::Seconds(14));
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_RUNNING);
  Advance(absl::Seconds(2));
  Advance(absl::Milliseconds(1));
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_FAILED);
  EXPECT_THAT(Job("j").failure().error(), HasSubstr("did not reconnect"));
}

TEST_F(ReconcilerOutageTest, RelaunchesLaunchLostInRestart) {
  StartOn({"a"});
  Restart();
  Attach("a", 1);  // The launch was not delivered.
  Advance(absl::Seconds(2));
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_STOPPING);
  Stopped("a", "j");
  Advance(absl::Milliseconds(1));
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_STARTING);
  EXPECT_EQ(Job("j").attempt(), 2);
}

TEST_F(ReconcilerOutageTest, StoppingJobFailsWithStoredCauseAfterRestart) {
  StartOn({"a"});
  Exit("a", "j", 0, 3);
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_STOPPING);
  Restart();
  Attach("a", 1);
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_FAILED);
  EXPECT_EQ(Job("j").failure().exit_code(), 3);
}

TEST_F(ReconcilerOutageTest, CancellingJobIsCancelledAfterRestart) {
  StartOn({"a"});
  Cancel("j").IgnoreError();
  Restart();
  Attach("a", 1, {{"j", 1}});
  EXPECT_EQ(StopsSent("a").size(), 1u);
  Stopped("a", "j");
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_CANCELLED);
}

TEST_F(ReconcilerOutageTest, StopsUnknownAttemptAndHoldsItsNode) {
  Attach("a", 2, {{"of-another-cluster", 3}});
  const auto stops = StopsSent("a");
  ASSERT_EQ(stops.size(), 1u);
  EXPECT_EQ(stops[0].attempt(), 3);
  Submit("j", 1, 1);
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_QUEUED);
  Stopped("a", "of-another-cluster", 3);
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_STARTING);
}

TEST_F(ReconcilerOutageTest, StallSurvivesRestartAndEndsWithAttempt) {
  RunOn({"a"});
  Advance(absl::Minutes(6));
  EXPECT_NE(Job("j").stalled_since_unix_nanos(), 0);
  Restart();
  Attach("a", 1, {{"j", 1}});
  Advance(absl::Seconds(1));
  EXPECT_NE(Job("j").stalled_since_unix_nanos(), 0);
  Exit("a", "j", 0, 1);
  Stopped("a", "j");
  Advance(absl::Seconds(1));
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_FAILED);
  EXPECT_EQ(Job("j").stalled_since_unix_nanos(), 0);
}

TEST_F(ReconcilerOutageTest, BackupStateLetsNewerAttemptSaveAndRenumbers) {
  Attach("a", 1);
  Attach("b", 1);
  Submit("j", 2, 1, /*max_attempts=*/1);
  Restart();
  Attach("a", 1, {{"j", 5}});
  Attach("b", 1, {{"j", 5}});
  for (const char* node : {"a", "b"}) {
    const std::vector<v1::Stop> stops = StopsSent(node);
    const auto newer =
        std::find_if(stops.begin(), stops.end(), [](const v1::Stop& stop) { return stop.attempt() == 5; });
    ASSERT_NE(newer, stops.end()) << node;
    EXPECT_TRUE(newer->save());
  }
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_STOPPING);
  EXPECT_THAT(Job("j").reason(), HasSubstr("node a hosts attempt 5 of the job"));
  const AttemptRef newer = {"j", 5};
  EXPECT_TRUE(rendezvous_->Set(newer, "save/1/0", "its sum").ok())
      << "its ranks exchange which files they saved";
  for (const char* node : {"a", "b"}) Stopped(node, "j", 1);
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_QUEUED);
  EXPECT_THAT(Job("j").reason(), HasSubstr("attempt 1 does not count against restart.max_attempts, because "
                                           "node a hosts attempt 5 of the job: "))
      << "no node has refused it";
  EXPECT_THAT(Job("j").reason(), HasSubstr("the next one, 6,"));
  Advance(absl::Seconds(5));
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_QUEUED) << "attempt 5 still has the slots";
  for (const char* node : {"a", "b"}) Stopped(node, "j", 5);
  Advance(absl::Seconds(1));
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_STARTING);
  EXPECT_EQ(Job("j").attempt(), 6);
  EXPECT_FALSE(rendezvous_->Set(newer, "k", "v").ok());
  Exit("a", "j", 0, 1, 6);
  Exit("b", "j", 1, 1, 6);
  for (const char* node : {"a", "b"}) Stopped(node, "j", 6);
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_FAILED) << "this one counts";
}

TEST_F(ReconcilerOutageTest, WaitingJobFromBackupIsNumberedAfterHostedAttempt) {
  Submit("j", 1, 1);
  Restart();
  Attach("a", 1, {{"j", 3}});
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_QUEUED);
  Stopped("a", "j", 3);
  Advance(options_.reattach_grace + absl::Seconds(1));
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_STARTING);
  EXPECT_EQ(Job("j").attempt(), 4);
}

// Regression: a node with its own certificate could stop other nodes' jobs like this any number of times.
TEST_F(ReconcilerOutageTest, UnplacedNodeCannotClaimAttempt) {
  RunOn({"a"});
  for (const bool restarted : {false, true}) {
    if (restarted) {
      Restart();
      Attach("a", 1, {{"j", 1}});
    }
    for (const int attempt : {1, 2, 7, kMaxAttempt}) {
      Attach("s2", 1, {{"j", attempt}});
      EXPECT_EQ(StopsSent("s2").size(), 1u) << "the hosted ranks end";
      EXPECT_TRUE(StopsSent("a").empty());
      EXPECT_EQ(StateOf("j"), v1::JOB_STATE_RUNNING);
      EXPECT_FALSE(rendezvous_->Set({"j", attempt + 1}, "save/1", "evil").ok());
    }
  }
  EXPECT_EQ(Job("j").attempt(), 1);
  Cancel("j").IgnoreError();
  Stopped("a", "j");
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_CANCELLED) << "nothing of it is left";
}

// Regression: it had the next attempt's number, and its messages were dropped as out of range.
TEST_F(ReconcilerOutageTest, RejectsAttemptFarAhead) {
  RunOn({"a"});
  Attach("a", 1, {{"j", 1}, {"j", kMaxAttempt}});
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_RUNNING);
  v1::RankExit refused;
  refused.set_exit_code(126);
  refused.set_newer_attempt(kMaxAttempt);
  ExitWith("a", "j", 0, refused);
  Stopped("a", "j");
  Advance(absl::Seconds(13));  // The ranks of the rejected attempt have this time to leave.
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_STARTING);
  EXPECT_EQ(Job("j").attempt(), 2 + kMaxAttemptsAhead);
}

TEST_F(ReconcilerOutageTest, ClaimOfNeverLaunchedJobOnlyDelaysIt) {
  Submit("j", 1, 1);
  Restart();
  Attach("s2", 1, {{"j", 1}});
  Attach("a", 1);
  Advance(options_.reattach_grace + absl::Seconds(1));
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_QUEUED);
  EXPECT_THAT(Job("j").reason(), HasSubstr("the remaining ranks of attempt 1 on s2"));
  EXPECT_FALSE(rendezvous_->Set({"j", 1}, "save/1", "evil").ok());
  Attach("s2", 1, {{"j", 1}, {"j", 2}});
  Advance(absl::Seconds(75));
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_STARTING) << "it may have saved by then";
}

// It was lost with ranks of attempt 1, and attempt 2 is elsewhere: only the job's record names it.
TEST_F(ReconcilerOutageTest, KnowsNodesOfEarlierAttemptAfterRestart) {
  MoveFromAToB();
  Restart();
  Attach("b", 1, {{"j", 2}});
  Attach("a", 1, {{"j", 1}});
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_RUNNING);
  Exit("b", "j", 0, 1, 2);
  Stopped("b", "j", 2);
  Advance(absl::Seconds(5));
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_QUEUED);
  EXPECT_THAT(Job("j").reason(), HasSubstr("the remaining ranks of attempt 1 on a"));
  Stopped("a", "j");
  Advance(absl::Seconds(5));
  EXPECT_EQ(Job("j").attempt(), 3);
}

TEST_F(ReconcilerOutageTest, RejectedAttemptNumberDoesNotCount) {
  StartOn({"a"});
  v1::RankExit refused;
  refused.set_exit_code(126);
  refused.set_error("launch rejected: attempt 1 is stale: attempt 7 was already here");
  refused.set_newer_attempt(7);
  ExitWith("a", "j", 0, refused);
  Stopped("a", "j");
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_QUEUED);
  Advance(absl::Seconds(1));
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_STARTING);
  EXPECT_EQ(Job("j").attempt(), 8);
}

TEST_F(ReconcilerOutageTest, ExitReportsUnreportedLastSteps) {
  RunOn({"a"});
  Restart();
  Attach("a", 1, {{"j", 1}});
  v1::RankExit exit;
  exit.mutable_last_report()->set_step(200);
  exit.mutable_last_report()->set_loss(5.5);
  ExitWith("a", "j", 0, exit);
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_SUCCEEDED);
  EXPECT_EQ(Job("j").last_step().step(), 200);
  EXPECT_EQ(Job("j").last_step().loss(), 5.5);
}

}  // namespace
}  // namespace fsdpd
