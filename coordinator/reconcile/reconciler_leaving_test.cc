// Jobs whose ranks leave: because of a cancel, because their node leaves, or because no step was valid; and
// what a restarted coordinator still knows of it.
#include <signal.h>

#include "base/limits.h"
#include "coordinator/testing/reconciler_case.h"

namespace fsdpd {
namespace {

using ::testing::HasSubstr;

class ReconcilerLeavingTest : public ReconcilerCase {
 protected:
  ReconcilerLeavingTest() {
    plan_ = [](const v1::JobSpec& spec, int64_t) {
      Plan plan;
      plan.resolved = WithDefaults(spec, nullptr);
      plan.resolved.mutable_train()->set_steps(6);
      plan.resolved.mutable_checkpoint()->set_dir("/runs/7");
      return plan;
    };
  }
  void Saved(const std::string& node, int64_t step, int attempt = 1) {
    v1::RankUpdate update = Update("j", 0, attempt);
    update.mutable_saved()->set_step(step);
    update.mutable_saved()->set_path("/runs/7/iter_" + std::to_string(step));
    reconciler_->OnReport(node, update, 0);
    reconciler_->RunOnce();
  }
  void ReadyAfter(const std::string& node, int64_t step, int attempt,
                  const std::string& directory = "/runs/7") {
    v1::RankUpdate update = Update("j", 0, attempt);
    update.mutable_ready()->mutable_restored()->set_step(step);
    update.mutable_ready()->mutable_restored()->set_path(directory + "/iter_" + std::to_string(step));
    reconciler_->OnReport(node, update, 0);
    reconciler_->RunOnce();
  }
  // The last reason before the job was queued again, because a waiting job has a reason of its own.
  std::string Retried() {
    for (int i = Job("j").events_size() - 1; i >= 0; --i) {
      const std::string message = Job("j").events(i).message();
      if (message.find("the next one starts after") != std::string::npos) return message;
    }
    return "";
  }
  static v1::RankExit Killed(int signal) {
    v1::RankExit exit;
    exit.set_signal(signal);
    return exit;
  }
  // Exit of rank 0 after this many steps; `counted` is the first valid one.
  static v1::RankExit Trained(int64_t last, int64_t counted) {
    v1::RankExit exit;
    exit.set_last_step(last);
    exit.set_first_counted_step(counted);
    return exit;
  }
};

// --- Drained nodes -----------------------------------------------------------------------------------------

// Regression: a cancel was lost with the coordinator that could not store it, and the node was blamed.
TEST_F(ReconcilerLeavingTest, ForgottenCancelBlamesNoNodeAndDoesNotCount) {
  RunOn({"a"});
  Restart();
  Attach("a", 1, {{"j", 1}});
  v1::RankExit stopped;
  stopped.set_exit_code(143);
  stopped.set_cancelled(true);
  ExitWith("a", "j", 0, stopped);
  Advance(absl::Seconds(1));
  EXPECT_FALSE(Job("j").failure().stopped_by_agent());
  EXPECT_EQ(Job("j").failure().cause(), v1::FAILURE_CAUSE_DRAINED);
  EXPECT_EQ(Job("j").failure().error(), "stopped by its agent on a coordinator's request");
  Stopped("a", "j");
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_QUEUED) << "none of the allowed attempts is used";
  EXPECT_THAT(Retried(), HasSubstr("a coordinator ordered the agent of a to stop it"));
}

TEST_F(ReconcilerLeavingTest, OnlyAttemptOnLeavingNodeContinuesElsewhere) {
  RunOn({"a"});
  Saved("a", 4);
  ExitWith("a", "j", 0, Drained());
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_STOPPING);
  EXPECT_EQ(Job("j").reason(),
            "node a is leaving: rank 0 ended: stopped by its agent, which was asked to stop; stopping the "
            "attempt");
  Stopped("a", "j");
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_QUEUED);
  EXPECT_EQ(Retried(),
            "attempt 1 does not count against restart.max_attempts, because node a shut down: its agent was "
            "asked to stop; the next one starts after " +
                Wait("j") + ", from the checkpoint of step 4");
  Detach("a");
  outboxes_.clear();
  Attach("b", 1);
  Advance(absl::Seconds(1));
  ASSERT_EQ(LaunchesSent("b").size(), 1u);
  ReadyAfter("b", 4, 2);
  Exit("b", "j", 0, 1, 2);
  Stopped("b", "j", 2);
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_FAILED) << "this one counts";
}

TEST_F(ReconcilerLeavingTest, JobWithoutCheckpointRestartsWhenNodeReturns) {
  RunOn({"a"});
  for (int attempt = 1; attempt <= 5; ++attempt) {
    ASSERT_EQ(Job("j").attempt(), attempt);
    ExitWith("a", "j", 0, Drained(), attempt);
    Stopped("a", "j", attempt);
    EXPECT_EQ(StateOf("j"), v1::JOB_STATE_QUEUED);
    EXPECT_EQ(Job("j").drains_since_checkpoint(), attempt);
    Detach("a");
    Attach("a", 1);
    Advance(absl::Seconds(1));
    ASSERT_EQ(StateOf("j"), v1::JOB_STATE_STARTING) << "the delay does not grow";
  }
}

TEST_F(ReconcilerLeavingTest, LeavingNodeIsRememberedAcrossRestart) {
  RunOn({"a"});
  Saved("a", 4);
  ExitWith("a", "j", 0, Drained());
  ASSERT_EQ(StateOf("j"), v1::JOB_STATE_STOPPING);
  Restart();
  Attach("b", 1);
  Advance(absl::Seconds(20));  // Its agent does not reconnect.
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_STARTING);
  EXPECT_EQ(Job("j").attempt(), 2);
  EXPECT_EQ(Job("j").drains_since_checkpoint(), 1);
}

// The agents of both nodes buffered the exits of their ranks, and report them after reconnecting, in either
// order.
TEST_F(ReconcilerLeavingTest, LeavingDuringOutageCostsNoAttempt) {
  for (const bool leaver_first : {true, false}) {
    SCOPED_TRACE(leaver_first);
    const std::string id = leaver_first ? "j" : "k";
    Attach("a", 1);
    Attach("b", 1);
    Submit(id, 2, 1);
    Ready("a", id, 0);
    Ready("b", id, 1);
    Restart();
    v1::RankExit of_peer;
    of_peer.set_exit_code(1);
    of_peer.set_error("step 85: Connection closed by peer");
    const int64_t then = absl::ToUnixNanos(clock_.Wall());
    const auto told = [&](const char* node, int rank, const v1::RankExit& exit) {
      v1::RankUpdate update = Update(id, rank);
      *update.mutable_exit() = exit;
      update.mutable_exit()->set_unix_nanos(then);
      reconciler_->OnReport(node, update, absl::ToUnixNanos(clock_.Wall()));
      reconciler_->RunOnce();
    };
    const auto peer_is_back = [&] {
      Attach("a", 1, {{id, 1}});
      told("a", 0, of_peer);
    };
    if (!leaver_first) peer_is_back();
    Advance(absl::Seconds(3));
    EXPECT_EQ(StateOf(id), v1::JOB_STATE_RUNNING);
    Attach("b", 1, {{id, 1}});  // Its exit is in transit.
    Advance(absl::Milliseconds(100));
    told("b", 1, Drained());
    if (leaver_first) peer_is_back();
    Advance(absl::Seconds(1));
    EXPECT_EQ(StateOf(id), v1::JOB_STATE_STOPPING);
    Stopped("a", id);
    Stopped("b", id);
    EXPECT_EQ(Job(id).drains_since_checkpoint(), 1) << Job(id).reason();
    EXPECT_NE(StateOf(id), v1::JOB_STATE_FAILED);
    EXPECT_TRUE(Cancel(id).ok());
    for (const char* node : {"a", "b"}) {
      Stopped(node, id, 2);
      Detach(node);
    }
  }
}

// The agent stops ranks whose save cannot succeed after one of them died.
TEST_F(ReconcilerLeavingTest, CrashWhileNodeLeavesIsAFailure) {
  for (const int signal : {SIGSEGV, SIGKILL}) {
    SCOPED_TRACE(signal);
    const std::string id = "j" + std::to_string(signal);
    Attach("a", 2);
    Submit(id, 1, 2);
    ExitWith("a", id, 0, Drained());  // Reported later, stopped at the same time.
    ExitWith("a", id, 1, Killed(signal));
    Stopped("a", id);
    EXPECT_EQ(StateOf(id), v1::JOB_STATE_QUEUED) << "that came first";
    Cancel(id).IgnoreError();

    const std::string other = "k" + std::to_string(signal);
    Submit(other, 1, 2);
    ExitWith("a", other, 1, Killed(signal));
    ExitWith("a", other, 0, Drained());
    Advance(absl::Seconds(1));
    Stopped("a", other);
    EXPECT_EQ(StateOf(other), v1::JOB_STATE_FAILED);
    EXPECT_EQ(Job(other).failure().rank(), 1);
    Detach("a");
  }
}

TEST_F(ReconcilerLeavingTest, CommittedAttemptOnLeavingNodeDoesNotCount) {
  Attach("a", 1);
  Submit("j", 1, 1, /*max_attempts=*/2);
  Ready("a", "j", 0);
  Saved("a", 2);
  ExitWith("a", "j", 0, Drained());
  Stopped("a", "j");
  for (const int attempt : {2, 3}) {
    Advance(absl::Seconds(2));
    ASSERT_EQ(Job("j").attempt(), attempt);
    ReadyAfter("a", 2, attempt);
    Exit("a", "j", 0, 1, attempt);
    Stopped("a", "j", attempt);
  }
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_FAILED);
}

// --- Cancelled jobs ----------------------------------------------------------------------------------------

TEST_F(ReconcilerLeavingTest, RestartKeepsRemainingGrace) {
  RunOn({"a"});
  ASSERT_TRUE(Cancel("j", "enough", 60000).ok());
  Advance(absl::Seconds(20));
  Restart();
  Attach("a", 1, {{"j", 1}});
  std::vector<v1::Stop> stops = StopsSent("a");
  ASSERT_FALSE(stops.empty());
  EXPECT_EQ(stops[0].grace_ms(), 40000);
  EXPECT_TRUE(stops[0].save());

  clock_.StepWall(-absl::Hours(1));
  Restart();
  Attach("a", 1, {{"j", 1}});
  EXPECT_EQ(StopsSent("a").at(0).grace_ms(), 60000) << "never more than was given";
  clock_.StepWall(absl::Hours(1));

  ASSERT_TRUE(Cancel("j", "now", 5000).ok());
  Advance(absl::Seconds(2));
  Restart();
  Attach("a", 1, {{"j", 1}});
  EXPECT_EQ(StopsSent("a").at(0).grace_ms(), 3000);
  Advance(absl::Seconds(4));
  Restart();
  Attach("a", 1, {{"j", 1}});
  stops = StopsSent("a");
  EXPECT_EQ(stops.at(0).grace_ms(), 1) << "0 would be the agent's own";
  EXPECT_FALSE(stops.at(0).save());
}

TEST_F(ReconcilerLeavingTest, CancelledJobCannotSaveAfterRankDied) {
  RunOn({"a", "b"});
  ASSERT_TRUE(Cancel("j", "enough", 60000).ok());
  ASSERT_TRUE(StopsSent("a").at(0).save());
  v1::RankExit left = Drained();
  left.set_drained(false);
  Advance(absl::Seconds(1));
  EXPECT_TRUE(StopsSent("a").empty());
  ExitWith("b", "j", 1, Killed(SIGKILL));
  const std::vector<v1::Stop> stops = StopsSent("a");
  ASSERT_EQ(stops.size(), 1u);
  EXPECT_FALSE(stops[0].save());
  EXPECT_EQ(Job("j").reason(),
            "no checkpoint can be saved any more: rank 1 on b failed: killed by signal 9 (SIGKILL)");
  EXPECT_FALSE(rendezvous_->Set({"j", 1}, "save/0", "committed").ok());
  ExitWith("a", "j", 0, left);
  Stopped("a", "j");
  Stopped("b", "j");
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_CANCELLED);
}

TEST_F(ReconcilerLeavingTest, RemainingRanksSaveAfterOneLeft) {
  RunOn({"a", "b"});
  ASSERT_TRUE(Cancel("j", "enough", 60000).ok());
  StopsSent("a");
  v1::RankExit left = Drained();
  left.set_drained(false);
  ExitWith("b", "j", 1, left);
  Stopped("b", "j");
  Detach("b");
  Advance(absl::Seconds(4));
  EXPECT_TRUE(StopsSent("a").empty());
  EXPECT_TRUE(rendezvous_->Set({"j", 1}, "save/0", "committed").ok());
}

TEST_F(ReconcilerLeavingTest, CancelledJobCannotSaveWithoutLostNode) {
  RunOn({"a", "b"});
  ASSERT_TRUE(Cancel("j", "enough", 600000).ok());
  Detach("b");
  outboxes_.erase("b");
  Advance(absl::Seconds(3));
  for (const v1::Stop& stop : StopsSent("a")) EXPECT_TRUE(stop.save());
  Advance(absl::Milliseconds(kAgentLostAfterMs));
  EXPECT_FALSE(StopsSent("a").back().save());
  EXPECT_EQ(Job("j").reason(), "no checkpoint can be saved any more: node b is lost");
}

// Regression: the state was PAUSING or CANCELLING without the node that it waited for.
TEST_F(ReconcilerLeavingTest, CancelledJobNamesSilentNodeUntilHeardFrom) {
  RunOn({"a", "b"});
  Detach("b");
  outboxes_.erase("b");
  ASSERT_TRUE(Cancel("j", "enough", 0).ok());
  Advance(absl::Seconds(1));
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_CANCELLING);
  EXPECT_EQ(
      Job("j").reason(),
      "waiting for b, not heard from; ranks may still run there; the job is cancelled once they have ended "
      "or the node is lost");
  EXPECT_EQ(Job("j").events().rbegin()->node(), "b");
  const int64_t revision = Job("j").revision();
  Advance(absl::Seconds(2));
  EXPECT_EQ(Job("j").revision(), revision) << "reported once";
  Attach("b", 1, {{"j", 1}});
  EXPECT_EQ(Job("j").reason(), "all agents are connected again; ranks are leaving");
  Stopped("a", "j");
  Stopped("b", "j");
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_CANCELLED);
}

// Regression: it stayed CANCELLING without a reason, because the agent sent heartbeats but never answered.
TEST_F(ReconcilerLeavingTest, CancelledJobNamesNodeThatDoesNotConfirmStop) {
  RunOn({"a", "b"});
  ASSERT_TRUE(Cancel("j", "enough", 5000).ok());
  Stopped("a", "j");
  Advance(absl::Seconds(30));
  EXPECT_THAT(Job("j").reason(), ::testing::Not(HasSubstr("waiting for b")));
  Advance(absl::Seconds(6));
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_CANCELLING);
  EXPECT_EQ(Job("j").reason(),
            "waiting for b, connected but has not confirmed the stop 30s after the grace period; ranks may "
            "still run there; the job is cancelled once they have ended or the node is lost");
  EXPECT_EQ(Job("j").events().rbegin()->node(), "b");
  const int64_t revision = Job("j").revision();
  Advance(absl::Seconds(6));
  EXPECT_EQ(Job("j").revision(), revision) << "reported once";
  Stopped("b", "j");
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_CANCELLED);
}

// Regression: an hour later its reason was still that the attempt is being stopped.
TEST_F(ReconcilerLeavingTest, FailedAttemptNamesNodeThatDoesNotConfirmStop) {
  RunOn({"a", "b"});
  Exit("a", "j", 0, 9);
  Stopped("a", "j");
  Advance(absl::Seconds(2));
  ASSERT_EQ(StateOf("j"), v1::JOB_STATE_STOPPING);
  EXPECT_EQ(Job("j").reason(), "rank 0 on a failed: exited with code 9; stopping the attempt");
  Advance(absl::Seconds(40));
  EXPECT_EQ(Job("j").reason(),
            "waiting for b, connected but has not confirmed the stop 30s after the grace period; ranks may "
            "still run there");
  EXPECT_EQ(Job("j").events().rbegin()->node(), "b");
  Stopped("b", "j");
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_FAILED);
  EXPECT_THAT(Job("j").reason(), HasSubstr("rank 0 on a failed: exited with code 9"));
}

TEST_F(ReconcilerLeavingTest, FailedAttemptDoesNotWaitForLostNode) {
  RunOn({"a", "b", "c"});
  Detach("b");
  outboxes_.erase("b");
  Exit("a", "j", 0, 9);
  Stopped("a", "j");
  Advance(absl::Seconds(20));
  ASSERT_EQ(StateOf("j"), v1::JOB_STATE_STOPPING);
  EXPECT_THAT(Job("j").reason(), ::testing::Not(HasSubstr("waiting for b")));
  Stopped("c", "j");
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_FAILED);
}

TEST_F(ReconcilerLeavingTest, FailedAttemptNamesSilentNode) {
  RunOn({"a", "b"});
  Exit("a", "j", 0, 9);
  Stopped("a", "j");
  Advance(absl::Seconds(2));
  Detach("b");
  outboxes_.erase("b");
  Advance(absl::Seconds(2));
  EXPECT_EQ(Job("j").reason(), "waiting for b, not heard from; ranks may still run there");
  Attach("b", 1, {{"j", 1}});
  EXPECT_EQ(Job("j").reason(), "all agents are connected again; ranks are leaving");
}

// Regression: the reason did not say either what happens to the job.
TEST_F(ReconcilerLeavingTest, PausedJobNamesSilentNodeAfterRestart) {
  RunOn({"a", "b"});
  ASSERT_TRUE(Pause("j").ok());
  Restart();
  Attach("a", 1, {{"j", 1}});
  Advance(options_.reattach_grace + absl::Seconds(1));
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_PAUSING);
  EXPECT_EQ(
      Job("j").reason(),
      "waiting for b, not heard from; ranks may still run there; the job is paused once they have ended; if "
      "the node is lost, `fsdpctl resume` continues the job");
  Attach("b", 1, {{"j", 1}});
  EXPECT_EQ(Job("j").reason(), "all agents are connected again; ranks are leaving");
}

TEST_F(ReconcilerLeavingTest, ResumedJobReportsThatItContinues) {
  RunOn({"a", "b"});
  Detach("b");
  outboxes_.erase("b");
  ASSERT_TRUE(Pause("j").ok());
  ASSERT_TRUE(Resume("j").ok());
  Advance(absl::Seconds(1));
  EXPECT_THAT(Job("j").reason(), HasSubstr("; the job continues once they have ended or the node is lost"));
}

// Regression: it was named in the first tick, and each restart added a meaningless event.
TEST_F(ReconcilerLeavingTest, NamesNoSilentNodeDuringReattachGrace) {
  RunOn({"a", "b"});
  const int64_t running = Job("j").revision();
  Restart();
  Attach("a", 1, {{"j", 1}});
  Advance(options_.reattach_grace - absl::Seconds(2));
  EXPECT_EQ(Job("j").revision(), running) << Job("j").reason();
  ASSERT_TRUE(Cancel("j", "", 600000).ok());
  const int64_t cancelled = Job("j").revision();
  Advance(absl::Seconds(1));
  EXPECT_EQ(Job("j").revision(), cancelled) << Job("j").reason();
  Attach("b", 1, {{"j", 1}});
  Advance(absl::Seconds(5));
  EXPECT_EQ(Job("j").revision(), cancelled) << Job("j").reason();
}

TEST_F(ReconcilerLeavingTest, IdleJobNamesLostNodeWhenCancelledOrPaused) {
  for (const char* node : {"a", "b"}) Attach(node, 1);
  for (const char* id : {"x", "y"}) Submit(id, 2, 1, /*max_attempts=*/2);
  const auto lose = [&](const std::string& id, const std::string& node) {
    Detach(node);
    outboxes_.erase(node);
    Advance(absl::Milliseconds(kAgentLostAfterMs) + absl::Seconds(2));
    Stopped("a", id);
    Advance(absl::Seconds(1));
    ASSERT_EQ(StateOf(id), v1::JOB_STATE_QUEUED);
  };
  lose("x", "b");
  ASSERT_TRUE(Cancel("x").ok());
  EXPECT_EQ(StateOf("x"), v1::JOB_STATE_CANCELLED);
  EXPECT_THAT(Job("x").reason(), HasSubstr("(node b is lost: the end of its ranks could not be confirmed)"));
  Attach("b", 1);
  Advance(absl::Seconds(1));
  ASSERT_EQ(StateOf("y"), v1::JOB_STATE_STARTING);
  lose("y", "b");
  ASSERT_TRUE(Pause("y").ok());
  EXPECT_EQ(StateOf("y"), v1::JOB_STATE_PAUSED);
  EXPECT_THAT(Job("y").reason(), HasSubstr("(node b is lost: the end of its ranks could not be confirmed)"));
}

// Regression: it was "cancelled, all ranks are gone" while ranks of attempt 1 still trained and saved.
TEST_F(ReconcilerLeavingTest, CancelledJobNamesLostNodeOfEarlierAttempt) {
  MoveFromAToB();
  ASSERT_TRUE(Cancel("j").ok());
  Stopped("b", "j", 2);
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_CANCELLED);
  EXPECT_THAT(Job("j").reason(),
              HasSubstr("all ranks elsewhere are gone (node a is lost: the end of its ranks could "
                        "not be confirmed)"));
}

TEST_F(ReconcilerLeavingTest, CancelledIdleJobNamesEachLostNode) {
  MoveFromAToB();
  Detach("b");
  outboxes_.erase("b");
  Advance(absl::Milliseconds(kAgentLostAfterMs) + absl::Seconds(2));
  ASSERT_EQ(StateOf("j"), v1::JOB_STATE_QUEUED);
  ASSERT_TRUE(Cancel("j").ok());
  EXPECT_THAT(Job("j").reason(),
              HasSubstr("(node a, b are lost: the end of its ranks could not be confirmed)"));
}

// --- Causes ------------------------------------------------------------------------------------------------

TEST_F(ReconcilerLeavingTest, AgentAsCauseSurvivesRestart) {
  RunOn({"a", "b"});
  Exit("a", "j", 0, 1);  // It lost its peer.
  v1::RankExit stopped = Drained();
  stopped.set_drained(false);  // Ordered by a coordinator.
  ExitWith("b", "j", 1, stopped);
  Advance(absl::Seconds(1));
  ASSERT_EQ(Job("j").failure().rank(), 1);
  Restart();
  Attach("a", 1, {{"j", 1}});
  Exit("a", "j", 0, 1);  // Repeated.
  Stopped("a", "j");
  Advance(absl::Seconds(17));
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_QUEUED);
  EXPECT_EQ(Job("j").failure().rank(), 1);
  EXPECT_THAT(Retried(), HasSubstr("ordered the agent of b to stop it"));
}

TEST_F(ReconcilerLeavingTest, StoredCauseIsKeptAfterRestart) {
  RunOn({"a", "b"});
  ExitWith("b", "j", 1, Killed(SIGKILL));
  Exit("a", "j", 0, 1);
  Advance(absl::Seconds(1));
  ASSERT_EQ(Job("j").failure().rank(), 1);
  Restart();
  Attach("a", 1, {{"j", 1}});
  Exit("a", "j", 0, 1);
  Stopped("a", "j");
  Advance(absl::Seconds(17));
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_FAILED);
  EXPECT_EQ(Job("j").failure().rank(), 1);
}

// --- Jobs without a valid step -----------------------------------------------------------------------------

TEST_F(ReconcilerLeavingTest, JobWithOnlySkippedStepsFailsWithReason) {
  const std::string why =
      "none of 6 steps was applied: train.on_nonfinite or train.on_spike skipped all of them, and the model "
      "was not trained";
  for (const bool restarts : {false, true}) {
    SCOPED_TRACE(restarts);
    Attach("a", 1);
    const std::string id = restarts ? "restarts" : "j";
    Submit(id, 1, 1, /*max_attempts=*/3);
    Ready("a", id, 0);
    ExitWith("a", id, 0, Trained(6, 0));
    EXPECT_EQ(StateOf(id), v1::JOB_STATE_STOPPING);
    if (restarts) Restart();
    if (restarts) Attach("a", 1, {{id, 1}});
    Stopped("a", id);
    EXPECT_EQ(StateOf(id), v1::JOB_STATE_FAILED) << "another attempt would have no valid step either";
    EXPECT_EQ(Job(id).reason(), why);
    EXPECT_EQ(Job(id).failure().error(), why);
    EXPECT_EQ(Job(id).failure().rank(), -1);
    Detach("a");
  }
}

TEST_F(ReconcilerLeavingTest, OneValidStepSuffices) {
  RunOn({"a"});
  ExitWith("a", "j", 0, Trained(6, 6));
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_SUCCEEDED);
}

// Attempts resume from each other, and some step reports are lost. The parameter is the first valid step; 0:
// none.
class ReconcilerStepsTest : public ReconcilerLeavingTest, public ::testing::WithParamInterface<int64_t> {};

TEST_P(ReconcilerStepsTest, StepsOfEarlierAttemptCount) {
  RunOn({"a"});
  Saved("a", 3);
  v1::RankExit left = Drained();
  left.set_last_step(3);
  left.set_first_counted_step(GetParam());
  ExitWith("a", "j", 0, left);
  Stopped("a", "j");
  Advance(absl::Seconds(2));
  ReadyAfter("a", 3, 2);
  ExitWith("a", "j", 0, Trained(6, 0), 2);
  Stopped("a", "j", 2);
  EXPECT_EQ(StateOf("j"), GetParam() == 0 ? v1::JOB_STATE_FAILED : v1::JOB_STATE_SUCCEEDED);
}
INSTANTIATE_TEST_SUITE_P(Steps, ReconcilerStepsTest, ::testing::Values(0, 2));

TEST_F(ReconcilerLeavingTest, StepsOfOtherJobDoNotCount) {
  Attach("a", 1);
  Submit("j", 1, 1);
  ReadyAfter("a", 3, 1, "/runs/6");
  ExitWith("a", "j", 0, Trained(6, 0));
  Stopped("a", "j");
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_FAILED);
}

TEST_F(ReconcilerLeavingTest, ExitWithoutStepCountIsSuccess) {
  RunOn({"a"});
  Exit("a", "j", 0, 0);  // From an agent of an older release.
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_SUCCEEDED);
}

}  // namespace
}  // namespace fsdpd
