#include "coordinator/attempt/verdict.h"

#include <gmock/gmock.h>

#include "coordinator/attempt/failure_policy.h"
#include "coordinator/testing/attempt_case.h"

namespace fsdpd {
namespace {

using ::testing::HasSubstr;

class VerdictTest : public AttemptCase {
 protected:
  Verdict JudgeNow() { return Judge(job_, facts_, Presences(), now_, options_); }
  std::string Wait() const { return absl::FormatDuration(RetryDelay(job_)); }
  // A job that may rewind to the checkpoint of `step`, and has no other attempt.
  void RewindsTo(int64_t step) {
    job_.mutable_spec()->mutable_restart()->set_max_attempts(1);
    job_.mutable_spec()->mutable_train()->set_global_batch(12);
    job_.mutable_spec()->mutable_train()->mutable_on_nonfinite()->set_action(v1::STEP_ACTION_REWIND);
    job_.add_checkpoints()->set_step(step);
  }
  // Rank 3 ends because of step 8.
  void ExitByBadStep(bool rewind = true) {
    v1::RankExit exit;
    exit.set_rank(3);
    exit.set_exit_code(1);
    exit.set_error("step 8: not finite");
    exit.mutable_bad_step()->set_step(8);
    exit.mutable_bad_step()->set_kind(v1::BAD_STEP_KIND_NONFINITE);
    exit.mutable_bad_step()->set_first_sample(84);
    exit.mutable_bad_step()->set_end_sample(96);
    exit.mutable_bad_step()->set_rewind(rewind);
    ASSERT_TRUE(facts_.TakeExit("node-1", 3, exit, now_, absl::ZeroDuration()));
  }
};
TEST_F(VerdictTest, HealthyAttemptHasNoEvent) { EXPECT_FALSE(JudgeNow().event.has_value()); }

TEST_F(VerdictTest, RunsWhenEveryRankIsReady) {
  job_.set_state(v1::JOB_STATE_STARTING);
  for (int rank = 0; rank < 3; ++rank) facts_.TakeReady(rank < 2 ? "node-0" : "node-1", rank);
  EXPECT_FALSE(JudgeNow().event.has_value());
  facts_.TakeReady("node-1", 3);
  EXPECT_EQ(JudgeNow().event, JobEvent::kReady);
}

TEST_F(VerdictTest, SucceedsOnlyIfEveryRankSucceeded) {
  for (int rank = 0; rank < 3; ++rank) Exit(rank, 0, 1);
  EXPECT_FALSE(JudgeNow().event.has_value());
  Exit(3, 0, 1);
  EXPECT_EQ(JudgeNow().event, JobEvent::kFinish);
}

TEST_F(VerdictTest, HangsWhenNoRankProgresses) {
  for (int rank = 0; rank < 3; ++rank) Still(rank, 1);
  EXPECT_FALSE(JudgeNow().event.has_value()) << "rank 3 may be the one that is slow";
  Still(3, 0);
  const Verdict failed = JudgeNow();
  EXPECT_EQ(failed.event, JobEvent::kFail);
  EXPECT_EQ(failed.failure->rank(), 3);
  EXPECT_EQ(failed.failure->node(), "node-1");
  EXPECT_EQ(failed.failure->hang().kind(), v1::Job::Hang::KIND_BEHIND);
  EXPECT_EQ(failed.reason,
            "rank 3 on node-1 hangs: no progress for 31 s; 3 ranks wait for it, rank 0 in Gather "
            "layer.1 of step 7; stopping the attempt");

  *job_.mutable_failure() = *failed.failure;
  job_.set_state(v1::JOB_STATE_STOPPING);
  Exit(0, 1, 1);  // Any exit of stopped ranks.
  for (NodePart& part : facts_.parts) part.stopped = true;
  EXPECT_EQ(JudgeNow().event, JobEvent::kGiveUp);
  EXPECT_FALSE(JudgeNow().failure.has_value()) << "the hang is final";
  job_.mutable_spec()->mutable_restart()->set_max_attempts(2);
  const Verdict again = JudgeNow();
  EXPECT_EQ(again.event, JobEvent::kRetry);
  EXPECT_THAT(again.reason, HasSubstr("attempt 1 of 2 failed: rank 3 on node-1 hangs: no progress"));
}

TEST_F(VerdictTest, NoHangWhileNodeIsDisconnectedOrCoordinatorPaused) {
  for (int rank = 0; rank < 4; ++rank) Still(rank, 1);
  presence_["node-0"] = Presence::kDisconnected;
  EXPECT_THAT(JudgeNow().reason, HasSubstr("waits for the agent of node-0"));
  presence_.clear();
  facts_.RestartWaits(now_);
  EXPECT_FALSE(JudgeNow().event.has_value());
}

TEST_F(VerdictTest, FailureTakesPrecedenceOverHang) {
  for (int rank = 0; rank < 4; ++rank) Still(rank, 1);
  Exit(2, 1, 1);
  EXPECT_FALSE(JudgeNow().event.has_value()) << "within the settling time";
  now_ += options_.settle;
  EXPECT_EQ(JudgeNow().failure->rank(), 2);
  EXPECT_FALSE(JudgeNow().failure->has_hang());
}

// Rank 0 lost its peers' connections because of rank 3's end, and is heard first.
TEST_F(VerdictTest, RewindIsTheCauseDespiteOtherFailures) {
  RewindsTo(6);
  Exit(0, 1, 1);
  ExitByBadStep();
  EXPECT_FALSE(JudgeNow().event.has_value()) << "another cause may still arrive";
  now_ += options_.settle;
  const Verdict failed = JudgeNow();
  EXPECT_EQ(failed.event, JobEvent::kFail);
  EXPECT_EQ(failed.failure->rank(), 3);
  EXPECT_EQ(failed.failure->bad_step().end_sample(), 96);

  *job_.mutable_failure() = *failed.failure;
  job_.set_state(v1::JOB_STATE_STOPPING);
  for (NodePart& part : facts_.parts) part.stopped = true;
  for (const bool recovered : {false, true}) {
    if (recovered) Reset(true);  // The coordinator knows only the stored state.
    for (NodePart& part : facts_.parts) part.stopped = true;
    const Verdict again = JudgeNow();
    EXPECT_EQ(again.event, JobEvent::kRetry);
    EXPECT_TRUE(again.rewinds);
    EXPECT_EQ(again.reason,
              "attempt 1 rewinds: rank 3 on node-1 failed: step 8: not finite; the next one starts from "
              "the checkpoint of step 6 and skips samples 72 to 95");
  }
  job_.set_rewinds(10);
  EXPECT_EQ(JudgeNow().event, JobEvent::kGiveUp);
  EXPECT_THAT(JudgeNow().reason, HasSubstr("has rewound 10 times (train.on_nonfinite.max is 10)"));
}

// The attempt had failed by what rank 0 reported, 300 ms before rank 3 could report the cause.
TEST_F(VerdictTest, LateRewindReportIsStillTheCause) {
  RewindsTo(6);
  Exit(0, 1, 1);
  now_ += options_.settle;
  const Verdict failed = JudgeNow();
  ASSERT_EQ(failed.event, JobEvent::kFail);
  EXPECT_EQ(failed.failure->rank(), 0);
  *job_.mutable_failure() = *failed.failure;
  job_.set_state(v1::JOB_STATE_STOPPING);
  ExitByBadStep();
  for (NodePart& part : facts_.parts) part.stopped = true;
  const Verdict again = JudgeNow();
  EXPECT_EQ(again.event, JobEvent::kRetry);
  EXPECT_TRUE(again.rewinds);
  ASSERT_TRUE(again.failure.has_value());
  EXPECT_EQ(again.failure->rank(), 3);
  EXPECT_EQ(again.failure->bad_step().end_sample(), 96);
}

TEST_F(VerdictTest, FatalBadStepEndsJobDespiteRemainingAttempts) {
  job_.mutable_spec()->mutable_restart()->set_max_attempts(3);
  ExitByBadStep(/*rewind=*/false);
  now_ += options_.settle;
  const Verdict failed = JudgeNow();
  ASSERT_EQ(failed.event, JobEvent::kFail);
  *job_.mutable_failure() = *failed.failure;
  job_.set_state(v1::JOB_STATE_STOPPING);
  for (NodePart& part : facts_.parts) part.stopped = true;
  const Verdict verdict = JudgeNow();
  EXPECT_EQ(verdict.event, JobEvent::kGiveUp);
  EXPECT_EQ(verdict.failure->rank(), 3);
}

TEST_F(VerdictTest, CancelledJobReportsWhatIsSaved) {
  job_.set_state(v1::JOB_STATE_CANCELLING);
  job_.mutable_spec()->mutable_checkpoint()->set_dir("/runs/1");
  job_.mutable_last_step()->set_step(12);
  for (NodePart& part : facts_.parts) part.stopped = true;
  EXPECT_EQ(JudgeNow().reason, "cancelled, all ranks are gone; none of 12 steps is saved");
  job_.add_checkpoints()->set_step(10);
  EXPECT_THAT(JudgeNow().reason, HasSubstr("; saved after step 10, without the 2 steps after it"));
  job_.add_checkpoints()->set_step(12);
  EXPECT_EQ(JudgeNow().reason, "cancelled, all ranks are gone; saved after step 12");
}

TEST_F(VerdictTest, RankStoppedOnOrderIsNotTheCause) {
  job_.set_state(v1::JOB_STATE_STOPPING);
  Exit(0, 143, 1, /*cancelled=*/true);
  Exit(2, 1, 5000);
  facts_.TakeStopped("node-0");
  facts_.TakeStopped("node-1");
  EXPECT_EQ(JudgeNow().failure->rank(), 2);
}

TEST_F(VerdictTest, LaunchRejectedByStoppingAgentDoesNotCount) {
  v1::RankExit refused;
  refused.set_exit_code(126);
  refused.set_error("launch rejected: the agent is stopping");
  refused.set_agent_stopping(true);
  job_.set_state(v1::JOB_STATE_STARTING);
  for (const int rank : {2, 3})
    ASSERT_TRUE(facts_.TakeExit("node-1", rank, refused, now_, absl::ZeroDuration()));
  now_ += options_.settle;
  const Verdict verdict = JudgeNow();
  ASSERT_EQ(verdict.event, JobEvent::kFail);
  EXPECT_TRUE(verdict.refused);
  *job_.mutable_failure() = *verdict.failure;
  job_.set_refused_launches(1);
  job_.set_state(v1::JOB_STATE_STOPPING);
  facts_.TakeStopped("node-0");
  facts_.TakeStopped("node-1");
  EXPECT_EQ(JudgeNow().event, JobEvent::kRetry);
  EXPECT_EQ(JudgeNow().reason,
            "attempt 1 does not count against restart.max_attempts, because node-1 rejected it: launch "
            "rejected: the agent is stopping; the next one starts after " +
                Wait());
  // A restarted coordinator still knows it.
  const std::string told = JudgeNow().reason;
  Reset(/*recovered=*/true);
  facts_.TakeStopped("node-0");
  facts_.TakeStopped("node-1");
  EXPECT_EQ(JudgeNow().event, JobEvent::kRetry);
  EXPECT_EQ(JudgeNow().reason, told);
  // The next one counts, and is the job's only attempt.
  job_.set_attempt(2);
  job_.mutable_failure()->set_attempt(2);
  job_.mutable_failure()->set_refused(false);
  Reset(false);
  Exit(2, 1, 5);
  facts_.TakeStopped("node-0");
  facts_.TakeStopped("node-1");
  EXPECT_EQ(JudgeNow().event, JobEvent::kGiveUp);
  // With several attempts, all have the numbers of their logs and of `fsdpctl describe`.
  job_.mutable_spec()->mutable_restart()->set_max_attempts(3);
  EXPECT_EQ(JudgeNow().event, JobEvent::kRetry);
  EXPECT_THAT(JudgeNow().reason, HasSubstr("attempt 2 of 4 failed"));
}

TEST_F(VerdictTest, ReportsAllAgentsBackUntilNextStep) {
  presence_["node-1"] = Presence::kDisconnected;
  job_.set_reason(JudgeNow().reason);
  presence_["node-1"] = Presence::kConnected;
  facts_.stepped_since_attached = true;
  facts_.TakeAttached("node-1", {2, 3}, now_);
  EXPECT_EQ(JudgeNow().reason, "all agents are connected again");
  job_.set_reason(JudgeNow().reason);
  EXPECT_FALSE(JudgeNow().event.has_value());
  facts_.stepped_since_attached = true;
  EXPECT_EQ(JudgeNow().event, JobEvent::kNote);
  EXPECT_EQ(JudgeNow().reason, "all 4 ranks run");
  job_.set_reason(JudgeNow().reason);
  EXPECT_FALSE(JudgeNow().event.has_value());
}

TEST_F(VerdictTest, EndingAgentIsTheCauseThoughPeersFailedFirst) {
  Exit(1, 1, 1000);
  Exit(2, 143, 2000, /*cancelled=*/true);
  now_ += options_.settle;
  const Verdict verdict = JudgeNow();
  ASSERT_EQ(verdict.event, JobEvent::kFail);
  EXPECT_EQ(verdict.failure->rank(), 2);
  *job_.mutable_failure() = *verdict.failure;
  job_.set_state(v1::JOB_STATE_STOPPING);
  facts_.TakeStopped("node-0");
  facts_.TakeStopped("node-1");
  EXPECT_THAT(JudgeNow().reason, HasSubstr("ordered the agent of node-1 to stop it"));
}

// Its peers, on other nodes, lose it before it is known that it leaves.
TEST_F(VerdictTest, AttemptOnLeavingNodeDoesNotCount) {
  v1::RankExit drained;
  drained.set_exit_code(143);
  drained.set_cancelled(true);
  drained.set_drained(true);
  Exit(1, 1, 1000);
  ASSERT_TRUE(facts_.TakeExit("node-1", 2, drained, now_, absl::Seconds(10) - absl::Nanoseconds(2000)));
  now_ += options_.settle;
  const Verdict failed = JudgeNow();
  ASSERT_EQ(failed.event, JobEvent::kFail);
  EXPECT_TRUE(failed.failure->drained());
  EXPECT_EQ(failed.failure->rank(), 2);
  *job_.mutable_failure() = *failed.failure;
  job_.set_state(v1::JOB_STATE_STOPPING);
  for (const bool recovered : {false, true}) {
    if (recovered) Reset(true);
    if (recovered) Exit(1, 1, 1000);  // Repeated; node-1 is gone.
    for (NodePart& part : facts_.parts) part.stopped = true;
    const Verdict again = JudgeNow();
    EXPECT_EQ(again.event, JobEvent::kRetry);
    EXPECT_TRUE(again.drained);
    EXPECT_FALSE(again.failure.has_value());
    EXPECT_EQ(again.reason,
              "attempt 1 does not count against restart.max_attempts, because node node-1 shut down: its "
              "agent was asked to stop; the next one starts after " +
                  Wait());
  }
}

TEST_F(VerdictTest, ConsequenceFollowsMultilineReason) {
  job_.mutable_spec()->mutable_restart()->set_max_attempts(2);
  v1::RankExit exit;
  exit.set_exit_code(1);
  exit.set_error("/runs/6 is of another model:\n  P.a is missing\n  P.b is missing");
  ASSERT_TRUE(facts_.TakeExit("node-0", 1, exit, now_, absl::ZeroDuration()));
  now_ += options_.settle;
  const std::string cause =
      "rank 1 on node-0 failed: /runs/6 is of another model:\n  P.a is missing\n  P.b is missing\n";
  EXPECT_EQ(JudgeNow().reason, cause + "stopping the attempt");
  job_.set_state(v1::JOB_STATE_STOPPING);
  for (NodePart& part : facts_.parts) part.stopped = true;
  EXPECT_THAT(JudgeNow().reason, HasSubstr("attempt 1 of 2 failed: " + cause + "the next one starts after "));
}

TEST_F(VerdictTest, DyingNodeIsTheCauseThoughPeersFailedFirst) {
  Exit(1, 1, 1000);
  presence_["node-1"] = Presence::kDisconnected;
  now_ += 10 * options_.settle;
  EXPECT_NE(JudgeNow().event, JobEvent::kFail);
  presence_["node-1"] = Presence::kLost;
  const Verdict verdict = JudgeNow();
  ASSERT_EQ(verdict.event, JobEvent::kFail);
  EXPECT_EQ(verdict.failure->rank(), -1);
  EXPECT_EQ(verdict.failure->node(), "node-1");
  *job_.mutable_failure() = *verdict.failure;
  job_.set_state(v1::JOB_STATE_STOPPING);
  facts_.TakeStopped("node-0");
  EXPECT_THAT(JudgeNow().reason, HasSubstr("node node-1 is lost"));
}

TEST_F(VerdictTest, RankStoppedOnlyByItsAgentFailsJob) {
  Exit(0, 143, 1, /*cancelled=*/true);
  now_ += options_.settle;
  EXPECT_EQ(JudgeNow().event, JobEvent::kFail);
  EXPECT_THAT(JudgeNow().reason, HasSubstr("rank 0 on node-0 ended: stopped by its agent on"));
}

TEST_F(VerdictTest, ReportsSignalOfRankWithoutError) {
  v1::RankExit exit;
  exit.set_signal(9);
  facts_.TakeExit("node-0", 1, exit, now_, absl::ZeroDuration());
  now_ += options_.settle;
  EXPECT_THAT(JudgeNow().reason, HasSubstr("rank 1 on node-0 failed: killed by signal 9 (SIGKILL)"));
}

TEST_F(VerdictTest, WaitsForDisconnectedNodeAndFailsForLostNode) {
  presence_["node-1"] = Presence::kDisconnected;
  Verdict verdict = JudgeNow();
  EXPECT_EQ(verdict.event, JobEvent::kNote);
  EXPECT_EQ(verdict.reason,
            "waits for the agent of node-1 to reconnect; the attempt ends after 9.5 s without heartbeats");
  job_.set_reason(verdict.reason);
  EXPECT_FALSE(JudgeNow().event.has_value());  // Once, not on every tick.
  presence_["node-1"] = Presence::kConnected;
  EXPECT_EQ(JudgeNow().reason, "all agents are connected again");
  presence_["node-1"] = Presence::kLost;
  verdict = JudgeNow();
  EXPECT_EQ(verdict.event, JobEvent::kFail);
  EXPECT_EQ(verdict.failure->rank(), -1);
  EXPECT_EQ(verdict.failure->node(), "node-1");
}

TEST_F(VerdictTest, ReportsFaultAndPermanentFaultEndsJob) {
  job_.mutable_spec()->mutable_restart()->set_max_attempts(5);
  v1::RankExit exit;
  exit.set_exit_code(1);
  exit.set_error("step 3: corpus.txt: token 7 at byte 14 is not below vocab_size 5");
  exit.mutable_error_class()->set_kind(v1::ErrorClass::KIND_DATA);
  exit.mutable_error_class()->set_permanent(true);
  ASSERT_TRUE(facts_.TakeExit("node-1", 2, exit, now_, absl::ZeroDuration()));
  now_ += options_.settle;
  const Verdict failed = JudgeNow();
  EXPECT_EQ(failed.reason, "rank 2 on node-1 failed by its data: " + exit.error() + "; stopping the attempt");
  EXPECT_EQ(failed.failure->cause(), v1::FAILURE_CAUSE_DATA);
  *job_.mutable_failure() = *failed.failure;
  job_.set_state(v1::JOB_STATE_STOPPING);
  for (const bool recovered : {false, true}) {
    if (recovered) Reset(true);
    for (NodePart& part : facts_.parts) part.stopped = true;
    EXPECT_EQ(JudgeNow().event, JobEvent::kGiveUp);
    EXPECT_EQ(JudgeNow().reason, "rank 2 on node-1 failed by its data: " + exit.error() +
                                     "; another attempt would fail in the same way");
  }
}

TEST_F(VerdictTest, IgnoresLostNodeWithFinishedRanks) {
  for (int rank = 0; rank < 4; ++rank) Exit(rank, 0, 1);
  presence_["node-1"] = Presence::kLost;
  EXPECT_EQ(JudgeNow().event, JobEvent::kFinish);
}

TEST_F(VerdictTest, StoppingEndsWhenEveryNodeIsGone) {
  job_.set_state(v1::JOB_STATE_STOPPING);
  Exit(2, 1, 5);
  facts_.TakeStopped("node-0");
  EXPECT_FALSE(JudgeNow().event.has_value());
  facts_.TakeStopped("node-1");
  const Verdict verdict = JudgeNow();
  EXPECT_EQ(verdict.event, JobEvent::kGiveUp);
  EXPECT_THAT(verdict.reason, HasSubstr("error of rank 2"));
}

TEST_F(VerdictTest, RetriesUpToAllowedAttempts) {
  job_.set_state(v1::JOB_STATE_STOPPING);
  job_.mutable_spec()->mutable_restart()->set_max_attempts(2);
  Exit(2, 1, 5);
  facts_.TakeStopped("node-0");
  facts_.TakeStopped("node-1");
  EXPECT_EQ(JudgeNow().event, JobEvent::kRetry);
  job_.set_attempt(2);
  EXPECT_EQ(JudgeNow().event, JobEvent::kGiveUp);
}

TEST_F(VerdictTest, AttemptsAndDelaysCountFromNewestCheckpoint) {
  job_.set_state(v1::JOB_STATE_STOPPING);
  job_.mutable_spec()->mutable_restart()->set_max_attempts(3);
  job_.mutable_spec()->mutable_checkpoint()->set_dir("/runs/7");
  Exit(2, 1, 5);
  facts_.TakeStopped("node-0");
  facts_.TakeStopped("node-1");
  job_.set_attempt(10);
  job_.set_refused_launches(1);
  EXPECT_EQ(JudgeNow().event, JobEvent::kGiveUp);
  EXPECT_EQ(
      JudgeNow().reason,
      "9 attempts in a row committed no checkpoint; the last one: rank 2 on node-1 failed: error of rank 2");
  job_.add_checkpoints()->set_step(400);
  job_.set_attempts_before_checkpoint(7);  // Attempt 9 committed it, after one rejected attempt.
  EXPECT_EQ(JudgeNow().event, JobEvent::kRetry);
  EXPECT_LE(JudgeNow().retry_after, absl::Seconds(2)) << "not the delay after ten failures";
  EXPECT_EQ(JudgeNow().reason,
            "attempt 10 of 11 failed: rank 2 on node-1 failed: error of rank 2; the next one starts after " +
                Wait() + ", from the checkpoint of step 400");
  // With a single allowed attempt the reason has no attempt number.
  job_.mutable_spec()->mutable_restart()->set_max_attempts(1);
  EXPECT_EQ(JudgeNow().event, JobEvent::kGiveUp);
  EXPECT_EQ(JudgeNow().reason, "rank 2 on node-1 failed: error of rank 2");
}

TEST_F(VerdictTest, RetryReportsItsDelay) {
  job_.set_state(v1::JOB_STATE_STOPPING);
  job_.mutable_spec()->mutable_restart()->set_max_attempts(9);
  job_.set_attempt(2);
  job_.mutable_last_step()->set_step(12);
  Exit(2, 1, 5);
  facts_.TakeStopped("node-0");
  facts_.TakeStopped("node-1");
  EXPECT_EQ(JudgeNow().retry_after, RetryDelay(job_));
  EXPECT_EQ(JudgeNow().reason,
            "attempt 2 of 9 failed after step 12: rank 2 on node-1 failed: error of rank 2; the next one "
            "starts after " +
                Wait());
}

TEST_F(VerdictTest, GivesUpJobWhoseLaunchEndsCoordinator) {
  job_.set_state(v1::JOB_STATE_STARTING);
  Reset(/*recovered=*/true);
  job_.set_state(v1::JOB_STATE_STOPPING);
  facts_.TakeStopped("node-0");
  facts_.TakeStopped("node-1");
  job_.set_attempt(3);
  EXPECT_EQ(JudgeNow().event, JobEvent::kRetry);
  job_.set_attempt(4);
  EXPECT_EQ(JudgeNow().event, JobEvent::kGiveUp);
}

TEST_F(VerdictTest, LaunchLostInRestartDoesNotCount) {
  job_.set_state(v1::JOB_STATE_STARTING);
  Reset(/*recovered=*/true);
  job_.set_state(v1::JOB_STATE_STOPPING);
  facts_.TakeStopped("node-0");
  facts_.TakeStopped("node-1");
  EXPECT_EQ(JudgeNow().event, JobEvent::kRetry);
}

TEST_F(VerdictTest, CancellingWaitsForEveryNodeAndNamesLostOnes) {
  job_.set_state(v1::JOB_STATE_CANCELLING);
  facts_.TakeStopped("node-0");
  presence_["node-1"] = Presence::kDisconnected;
  EXPECT_EQ(JudgeNow().event, JobEvent::kNote);
  presence_["node-1"] = Presence::kLost;
  const Verdict verdict = JudgeNow();
  EXPECT_EQ(verdict.event, JobEvent::kRanksGone);
  EXPECT_THAT(verdict.reason, HasSubstr("node-1 is lost"));
}

}  // namespace
}  // namespace fsdpd
