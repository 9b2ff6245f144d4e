// Jobs from submit to end, with a coordinator that is never interrupted.
#include "coordinator/reconcile/reconciler.h"

#include <signal.h>

#include "base/rank/exit_code.h"
#include "coordinator/request/job_etag.h"
#include "coordinator/testing/reconciler_case.h"

namespace fsdpd {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;

using ReconcilerTest = ReconcilerCase;

TEST_F(ReconcilerTest, LaunchesEveryNodeWithItsRanks) {
  Attach("a", 2);
  Attach("b", 2);
  Submit("j", 2, 2);
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_STARTING);
  const auto on_a = LaunchesSent("a"), on_b = LaunchesSent("b");
  ASSERT_EQ(on_a.size(), 1u);
  ASSERT_EQ(on_b.size(), 1u);
  EXPECT_EQ(on_a[0].first_rank(), 0);
  EXPECT_EQ(on_b[0].first_rank(), 2);
  EXPECT_EQ(on_b[0].ranks(), 2);
  EXPECT_EQ(on_b[0].world_size(), 4);
  EXPECT_EQ(on_b[0].attempt(), 1);
  EXPECT_EQ(on_b[0].devices_size(), 2);
}

TEST_F(ReconcilerTest, SucceedsAfterReadyAndFreesSlots) {
  Attach("a", 2);
  Submit("j", 1, 2);
  EXPECT_EQ(nodes_->Snapshot()[0].free_slots, 0);
  Ready("a", "j", 0);
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_STARTING);
  Ready("a", "j", 1);
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_RUNNING);
  Exit("a", "j", 0, 0);
  Exit("a", "j", 1, 0);
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_SUCCEEDED);
  EXPECT_EQ(nodes_->Snapshot()[0].free_slots, 0);  // Until the agent confirms.
  Stopped("a", "j");
  EXPECT_EQ(nodes_->Snapshot()[0].free_slots, 2);
}

TEST_F(ReconcilerTest, StoresChangesBeforeActing) {
  StartOn({"a"});
  ASSERT_EQ(LaunchesSent("a").size(), 1u);
  EXPECT_EQ(store_->Get("j")->state(), v1::JOB_STATE_STARTING);
  EXPECT_EQ(store_->Get("j")->attempt(), 1);
}

TEST_F(ReconcilerTest, ServesJobsInOrderAndNamesJobAhead) {
  Attach("a", 2);
  Submit("running", 1, 1);
  Submit("large", 1, 2);
  Submit("small", 1, 1);  // Would fit, but must not overtake.
  EXPECT_EQ(StateOf("small"), v1::JOB_STATE_QUEUED);
  EXPECT_THAT(Job("large").reason(), HasSubstr("a has 1 of 2 free (held by running)"));
  EXPECT_THAT(Job("small").reason(), HasSubstr("waits behind job large"));
  Exit("a", "running", 0, 0);
  Stopped("a", "running");
  EXPECT_EQ(StateOf("large"), v1::JOB_STATE_STARTING);
  EXPECT_EQ(StateOf("small"), v1::JOB_STATE_QUEUED);
}

TEST_F(ReconcilerTest, SkipsImpossibleJobUntilNodesExist) {
  Attach("a", 1);
  Submit("large", 2, 1);
  Submit("small", 1, 1);
  EXPECT_EQ(StateOf("small"), v1::JOB_STATE_QUEUED);  // Other agents may still reconnect.
  Advance(absl::Seconds(16));
  EXPECT_EQ(StateOf("small"), v1::JOB_STATE_STARTING);
  EXPECT_THAT(Job("large").reason(), HasSubstr("even when idle, only 1 ready node could take 1 rank"));
  EXPECT_THAT(Job("large").reason(), HasSubstr("jobs behind it are placed first"));
  Submit("next", 1, 1);
  Attach("b", 1);
  EXPECT_EQ(StateOf("next"), v1::JOB_STATE_QUEUED);  // No job passes it any more.
  EXPECT_THAT(Job("next").reason(), HasSubstr("waits behind job large"));
  Exit("a", "small", 0, 0);
  Stopped("a", "small");
  EXPECT_EQ(StateOf("large"), v1::JOB_STATE_STARTING);
}

TEST_F(ReconcilerTest, KeepsPlaceWhileNodeIsDisconnected) {
  Attach("a", 1);
  Attach("b", 1);
  Advance(absl::Seconds(16));
  Submit("running", 1, 1);
  Submit("large", 2, 1);
  Detach("b");
  reconciler_->RunOnce();
  Submit("small", 1, 1);
  Exit("a", "running", 0, 0);
  Stopped("a", "running");
  EXPECT_EQ(StateOf("small"), v1::JOB_STATE_QUEUED);
  outboxes_.erase("b");
  Advance(absl::Seconds(11));  // It is lost.
  EXPECT_EQ(StateOf("small"), v1::JOB_STATE_STARTING);
}

TEST_F(ReconcilerTest, StoresQueuedReasonOnce) {
  Submit("j", 1, 1);
  const int64_t revision = Job("j").revision();
  for (int i = 0; i < 20; ++i) Advance(absl::Milliseconds(100));
  EXPECT_EQ(Job("j").revision(), revision);
}

TEST_F(ReconcilerTest, FailedRankStopsOthersBeforeJobFails) {
  StartOn({"a", "b"});
  Exit("b", "j", 1, 1);
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_STARTING);
  Advance(absl::Milliseconds(300));
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_STOPPING);
  EXPECT_EQ(StopsSent("a").size(), 1u);
  Stopped("b", "j");
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_STOPPING);
  Stopped("a", "j");
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_FAILED);
  EXPECT_EQ(Job("j").failure().rank(), 1);
  EXPECT_EQ(Job("j").failure().node(), "b");
}

TEST_F(ReconcilerTest, RetriesWhileAttemptsAreLeft) {
  Attach("a", 1);
  Submit("j", 1, 1, /*max_attempts=*/2);
  Exit("a", "j", 0, 1);
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_STOPPING);
  Stopped("a", "j");
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_QUEUED);
  EXPECT_THAT(Job("j").reason(), HasSubstr("attempt 1 of 2 failed"));
  Submit("other", 1, 1);  // It takes the slot that is not reserved.
  EXPECT_EQ(StateOf("other"), v1::JOB_STATE_STARTING);
  Exit("a", "other", 0, 0);
  Stopped("a", "other");
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_QUEUED);
  Advance(absl::Seconds(1));
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_STARTING);
  EXPECT_EQ(Job("j").attempt(), 2);
  Exit("a", "j", 0, 0, /*attempt=*/1);  // Stale: belongs to the previous attempt.
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_STARTING);
  Exit("a", "j", 0, 1, /*attempt=*/2);
  Stopped("a", "j", 2);
  Advance(absl::Milliseconds(1));
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_FAILED);
}

TEST_F(ReconcilerTest, RetryDelayStartsAtFailure) {
  Attach("a", 1);
  Submit("j", 1, 1, /*max_attempts=*/3);
  Exit("a", "j", 0, 1);
  Advance(absl::Milliseconds(400));  // The rank's teardown.
  Stopped("a", "j");
  const absl::Duration left = RetryDelay(Job("j")) - absl::Milliseconds(400);
  EXPECT_THAT(Job("j").reason(), EndsWith("the next one starts after " + absl::FormatDuration(left)));
  Advance(left - absl::Milliseconds(10));
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_QUEUED);
  Advance(absl::Milliseconds(20));
  ASSERT_EQ(StateOf("j"), v1::JOB_STATE_STARTING);
  Exit("a", "j", 0, 1, /*attempt=*/2);
  Advance(absl::Seconds(5));
  Stopped("a", "j", /*attempt=*/2);
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_STARTING);
  EXPECT_EQ(Job("j").attempt(), 3);
  EXPECT_THAT(Job("j").events(Job("j").events_size() - 2).message(),
              EndsWith("the next one starts immediately"));
}

TEST_F(ReconcilerTest, LatePrimaryFailureIsTheCause) {
  RunOn({"a", "b"});
  Exit("a", "j", 0, kPeerFailedExitCode);
  Advance(absl::Seconds(3));
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_RUNNING);
  v1::RankExit killed;
  killed.set_signal(SIGKILL);
  ExitWith("b", "j", 1, killed);
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_STOPPING);
  EXPECT_EQ(Job("j").failure().rank(), 1);
}

TEST_F(ReconcilerTest, RankThatLostPeerIsNamedWithoutOtherCause) {
  RunOn({"a", "b"});
  Exit("a", "j", 0, kPeerFailedExitCode);
  Advance(absl::Seconds(6));
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_STOPPING);
  EXPECT_EQ(Job("j").failure().rank(), 0);
}

TEST_F(ReconcilerTest, ShowsRunningBeforeFirstStep) {
  StartOn({"a"});
  const auto watch = board_->Watch("j", 0);
  v1::RankUpdate ready = Update("j", 0), step = Update("j", 0);
  ready.mutable_ready();
  step.mutable_step()->set_step(1);
  reconciler_->OnReport("a", ready, 0);  // Both within one tick.
  reconciler_->OnReport("a", step, 0);
  reconciler_->RunOnce();
  std::vector<std::string> seen;
  v1::WatchJobResponse update;
  while (watch->Next(absl::ZeroDuration(), &update) == JobWatch::Got::kUpdate)
    seen.push_back(update.has_step() ? "step" : v1::JobState_Name(update.job().state()));
  ASSERT_GE(seen.size(), 2U);
  EXPECT_EQ(seen[seen.size() - 2], "JOB_STATE_RUNNING");
  EXPECT_EQ(seen.back(), "step");
}

TEST_F(ReconcilerTest, CancelOfQueuedJobIsImmediate) {
  Submit("j", 1, 1);
  const auto job = Cancel("j", "not needed");
  ASSERT_TRUE(job.ok());
  EXPECT_EQ(job->state(), v1::JOB_STATE_CANCELLED);
  EXPECT_THAT(job->reason(), HasSubstr("not needed"));
  Attach("a", 1);
  EXPECT_TRUE(LaunchesSent("a").empty());
  EXPECT_EQ(Cancel("j")->revision(), job->revision());  // Repeated: unchanged.
  EXPECT_EQ(Cancel("unknown").status().code(), absl::StatusCode::kNotFound);
}

TEST_F(ReconcilerTest, CancelOfRunningJobWaitsForEveryNode) {
  StartOn({"a", "b"});
  EXPECT_EQ(Cancel("j", "why", 7000)->state(), v1::JOB_STATE_CANCELLING);
  const auto stops = StopsSent("b");
  ASSERT_EQ(stops.size(), 1u);
  EXPECT_EQ(stops[0].grace_ms(), 7000);
  Stopped("a", "j");
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_CANCELLING);
  EXPECT_EQ(Cancel("j", "", 500)->state(), v1::JOB_STATE_CANCELLING);
  EXPECT_EQ(StopsSent("b").back().grace_ms(), 500);  // A second cancel may only shorten the grace.
  Cancel("j", "", 9000).IgnoreError();
  EXPECT_TRUE(StopsSent("b").empty());
  Stopped("b", "j");
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_CANCELLED);
}

TEST_F(ReconcilerTest, RepeatsStopUntilAnswered) {
  StartOn({"a"});
  Cancel("j").IgnoreError();
  EXPECT_EQ(StopsSent("a").size(), 1u);
  Advance(absl::Seconds(5));
  EXPECT_EQ(StopsSent("a").size(), 1u);
  Stopped("a", "j");
  Advance(absl::Seconds(5));
  EXPECT_TRUE(StopsSent("a").empty());
}

TEST_F(ReconcilerTest, StepsHaveNoRevisionAndAreStoredWithinASecond) {
  StartOn({"a"});
  Advance(absl::Seconds(2));
  const int64_t before = Job("j").revision();
  for (int step = 1; step <= 3; ++step) {
    v1::RankUpdate update = Update("j", 0);
    update.mutable_step()->set_step(step);
    update.mutable_step()->set_loss(6.0 - step);
    reconciler_->OnReport("a", update, 0);
  }
  reconciler_->RunOnce();
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_RUNNING);  // A step of rank 0 shows that all ranks run.
  EXPECT_EQ(Job("j").revision(), before + 1);
  v1::RankUpdate update = Update("j", 0);
  update.mutable_step()->set_step(4);
  reconciler_->OnReport("a", update, 0);
  reconciler_->RunOnce();
  EXPECT_EQ(Job("j").last_step().step(), 4);
  EXPECT_EQ(Job("j").first_loss(), 5.0);
  EXPECT_EQ(Job("j").revision(), before + 1);
  Advance(absl::Seconds(1));
  EXPECT_EQ(store_->Get("j")->last_step().step(), 4);
}

TEST_F(ReconcilerTest, HangEndsAttemptAndNamesRankToAgents) {
  RunOn({"a", "b"});
  v1::RankUpdate update = Update("j", 0);
  update.mutable_no_progress()->set_no_progress_ms(31000);
  reconciler_->OnReport("a", update, 0);
  update.set_rank(1);
  reconciler_->OnReport("a", update, 0);  // It does not exist.
  reconciler_->RunOnce();
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_RUNNING);
  update.mutable_no_progress()->set_process(v1::PROCESS_STATE_STOPPED);
  reconciler_->OnReport("b", update, 0);
  reconciler_->RunOnce();
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_STOPPING);
  EXPECT_EQ(Job("j").failure().rank(), 1);
  for (const char* node : {"a", "b"}) {
    const std::vector<v1::Stop> stops = StopsSent(node);
    ASSERT_EQ(stops.size(), 1u);
    EXPECT_EQ(stops[0].hang().rank(), 1);
    EXPECT_THAT(stops[0].hang().verdict(), HasSubstr("stopped by a signal"));
  }
}

TEST_F(ReconcilerTest, ReportsStallUntilNextStep) {
  StartOn({"a"});
  const auto step = [&](int64_t number) {
    v1::RankUpdate update = Update("j", 0);
    update.mutable_step()->set_step(number);
    update.mutable_step()->set_step_seconds(0.2);
    update.mutable_step()->set_unix_nanos(absl::ToUnixNanos(clock_.Wall()));
    reconciler_->OnReport("a", update, 0);
    reconciler_->RunOnce();
  };
  for (int number = 1; number <= 3; ++number) step(number);
  const absl::Time last = clock_.Wall();
  Advance(absl::Seconds(10));
  EXPECT_EQ(Job("j").stalled_since_unix_nanos(), 0);
  Advance(absl::Seconds(1));
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_RUNNING);
  EXPECT_EQ(Job("j").reason(), "no step for 11 s; the last one took 200 ms");
  EXPECT_EQ(Job("j").stalled_since_unix_nanos(), absl::ToUnixNanos(last));
  const int64_t revision = Job("j").revision();
  Advance(absl::Seconds(60));
  EXPECT_EQ(Job("j").revision(), revision);  // Reported once.
  step(4);
  EXPECT_EQ(Job("j").reason(), "steps continued after 1 m 11 s without one");
  EXPECT_EQ(Job("j").stalled_since_unix_nanos(), 0);
}

// Regression: the ledger omitted the time between admission and the tick that took the event, so causes did
// not add up.
TEST_F(ReconcilerTest, LedgerStartsAtAdmission) {
  const absl::Time admitted = clock_.Now();
  v1::Job job;
  job.set_id("j");
  job.set_state(v1::JOB_STATE_QUEUED);
  job.set_revision(1);
  job.set_create_unix_nanos(absl::ToUnixNanos(clock_.Wall()));
  ASSERT_TRUE(store_->Insert(job).ok());
  clock_.Advance(absl::Seconds(2));
  reconciler_->Submitted(job, admitted);
  clock_.Advance(absl::Seconds(3));
  reconciler_->RunOnce();
  Cancel("j").IgnoreError();
  ASSERT_EQ(StateOf("j"), v1::JOB_STATE_CANCELLED);
  EXPECT_NEAR(SecondsOf(Job("j").ledger()), 5, 1e-3);
}

// Regression: an hour never got a cause, and neither did the time that followed until that hour was over.
TEST_F(ReconcilerTest, DateJumpsAddNothingToLedger) {
  RunOn({"a"});
  const absl::Time begun = clock_.Now();
  Advance(absl::Seconds(5));
  clock_.StepWall(absl::Hours(1));
  Advance(absl::Seconds(5));
  Pause("j").IgnoreError();
  Cancel("j").IgnoreError();
  clock_.StepWall(-absl::Hours(1));
  Advance(absl::Seconds(5));
  Exit("a", "j", 0, 143);
  Stopped("a", "j");
  ASSERT_EQ(StateOf("j"), v1::JOB_STATE_CANCELLED);
  EXPECT_NEAR(SecondsOf(Job("j").ledger()), absl::ToDoubleSeconds(clock_.Now() - begun), 1e-3);
}

TEST_F(ReconcilerTest, LaterDateOfPreviousProcessDoesNotStopLedger) {
  clock_.StepWall(absl::Hours(1));
  Restart();
  RunOn({"a"});
  clock_.StepWall(-absl::Hours(1));
  Restart();
  Attach("a", 1, {{"j", 1}});
  const double before = SecondsOf(Job("j").ledger());
  Advance(absl::Seconds(7));
  Cancel("j").IgnoreError();
  EXPECT_NEAR(SecondsOf(Job("j").ledger()) - before, 7, 1e-3);
}

TEST_F(ReconcilerTest, LocatesRanksOncePerStall) {
  RunOn({"a", "b"});
  const auto step = [&](int64_t number) {
    v1::RankUpdate update = Update("j", 0);
    update.mutable_step()->set_step(number);
    update.mutable_step()->set_step_seconds(0.2);
    update.mutable_step()->set_unix_nanos(absl::ToUnixNanos(clock_.Wall()));
    reconciler_->OnReport("a", update, 0);
    reconciler_->RunOnce();
  };
  const auto stand = [&](const std::string& node, int rank, const std::string& where) {
    v1::RankUpdate update = Update("j", rank);
    update.mutable_position()->set_position(where);
    reconciler_->OnReport(node, update, 0);
    reconciler_->RunOnce();
  };
  const auto asked = [&](const std::string& node) {
    std::vector<std::string> reasons;
    for (const auto& message : Sent(node)) {
      if (message.has_locate()) reasons.push_back(message.locate().reason());
    }
    return reasons;
  };
  for (int number = 1; number <= 3; ++number) step(number);
  stand("a", 0, "early");
  EXPECT_TRUE(asked("a").empty());
  Advance(absl::Seconds(60));
  EXPECT_EQ(asked("a"), std::vector<std::string>{"no step for 11 s; the last one took 200 ms"});
  EXPECT_EQ(asked("b").size(), 1u);
  const int64_t revision = Job("j").revision();
  stand("a", 0, "step 4: reduce in Norm");
  stand("b", 1, "stopped");
  ASSERT_EQ(Job("j").positions_size(), 2);
  EXPECT_EQ(Job("j").positions(0).position(), "step 4: reduce in Norm");
  EXPECT_EQ(Job("j").positions(1).ranks(0), 1);
  EXPECT_EQ(Job("j").revision(), revision);
  Advance(absl::Seconds(1));
  EXPECT_EQ(store_->Get("j")->positions_size(), 2);
  step(4);
  EXPECT_EQ(Job("j").positions_size(), 0);
  stand("a", 0, "late");
  EXPECT_EQ(Job("j").positions_size(), 0);
  EXPECT_TRUE(asked("a").empty());
  Advance(absl::Minutes(10));  // Steps that may take a minute have more time.
  EXPECT_EQ(asked("a").size(), 1u);
  stand("a", 0, "again");
  Cancel("j").IgnoreError();
  EXPECT_EQ(Job("j").positions_size(), 1);  // Kept as evidence.
}

TEST_F(ReconcilerTest, RejectsOutdatedEtag) {
  Attach("a", 1);
  Submit("j", 1, 1);
  const std::string seen = EtagOf(Job("j"));
  Ready("a", "j", 0);
  const auto late = reconciler_->Pause("j", "", 0, seen);
  EXPECT_TRUE(absl::IsAborted(late.status()));
  EXPECT_THAT(late.status().message(), HasSubstr("it is running"));
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_RUNNING);
  v1::RankUpdate step = Update("j", 0);
  const std::string now = EtagOf(Job("j"));
  step.mutable_step()->set_step(1);
  reconciler_->OnReport("a", step, 0);
  reconciler_->RunOnce();
  EXPECT_EQ(EtagOf(Job("j")), now) << "a step is no change";
  EXPECT_TRUE(reconciler_->Cancel("j", "", 1000, now).ok());
  Exit("a", "j", 0, 143);
  Stopped("a", "j");
  EXPECT_TRUE(absl::IsAborted(reconciler_->Delete("j", now).status()));
  EXPECT_TRUE(absl::IsAborted(reconciler_->Retry("j", "", now).status()));
  EXPECT_TRUE(absl::IsNotFound(reconciler_->Delete("nobody", now).status()));
  EXPECT_TRUE(reconciler_->Delete("j", EtagOf(Job("j"))).ok());
}

TEST_F(ReconcilerTest, RendezvousErrorFailsAttempt) {
  StartOn({"a"});
  reconciler_->AttemptFailed("nobody", {"j", 1}, "what a node tells that has no part of the job");
  reconciler_->RunOnce();
  EXPECT_NE(StateOf("j"), v1::JOB_STATE_STOPPING);
  reconciler_->AttemptFailed("a", {"j", 1}, "rendezvous key 'k' was set twice with different values");
  reconciler_->RunOnce();
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_STOPPING);
  EXPECT_THAT(Job("j").failure().error(), HasSubstr("set twice"));
}

TEST_F(ReconcilerTest, InternalPlanErrorFailsOnlyItsJob) {
  plan_ = [](const v1::JobSpec&, int64_t) {
    Plan plan;
    plan.violations = {
        {"compiler_bug", ViolationLevel::kError, "spec", "resolve.cc:7: bytes > 0", "", "", ""}};
    return plan;
  };
  StartOn({"a", "b"});
  Advance(absl::Seconds(2));
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_FAILED);
  EXPECT_THAT(Job("j").failure().error(), HasSubstr("resolve.cc:7"));
  EXPECT_TRUE(LaunchesSent("a").empty());
  EXPECT_EQ(nodes_->Snapshot()[0].free_slots, 1);
  EXPECT_EQ(store_->Get("j")->state(), v1::JOB_STATE_FAILED);
}

TEST_F(ReconcilerTest, RendezvousIsOpenWhileAttemptMayRun) {
  StartOn({"a"});
  const AttemptRef ref = {"j", 1};
  EXPECT_TRUE(rendezvous_->Set(ref, "k", "v").ok());
  Cancel("j").IgnoreError();
  EXPECT_FALSE(rendezvous_->Set(ref, "k", "v").ok());
}

TEST_F(ReconcilerTest, LaunchRejectedByStoppingAgentDoesNotCount) {
  Attach("a", 1);
  Submit("j", 1, 1, /*max_attempts=*/1);
  v1::RankUpdate refused = Update("j", 0);
  refused.mutable_exit()->set_exit_code(126);
  refused.mutable_exit()->set_error("launch rejected: the agent is stopping");
  refused.mutable_exit()->set_agent_stopping(true);
  reconciler_->OnReport("a", refused, absl::ToUnixNanos(clock_.Wall()));
  reconciler_->RunOnce();
  Stopped("a", "j");
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_QUEUED);
  EXPECT_EQ(Job("j").refused_launches(), 1);
  EXPECT_THAT(Job("j").reason(),
              HasSubstr("attempt 1 does not count against restart.max_attempts, because a rejected it"));
  Advance(absl::Seconds(1));
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_STARTING);
  Exit("a", "j", 0, 1, /*attempt=*/2);
  Stopped("a", "j", /*attempt=*/2);
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_FAILED) << "this one counts";
}

}  // namespace
}  // namespace fsdpd
