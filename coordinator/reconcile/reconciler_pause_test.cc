// Jobs that are paused and resumed: the orders to their ranks, the meaning of PAUSED, and what a restarted
// coordinator still knows of it.
#include <algorithm>
#include <optional>

#include "coordinator/testing/full_disk.h"
#include "coordinator/testing/pause_case.h"

namespace fsdpd {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

using ReconcilerPauseTest = PauseCase;

TEST_F(ReconcilerPauseTest, SavesLeavesAndIsPausedWhenAllRanksAreGone) {
  RunOn({"a", "b"});
  Stepped("a", 7);
  LaunchesSent("a");
  const absl::StatusOr<v1::Job> pausing = Pause("j");
  ASSERT_TRUE(pausing.ok()) << pausing.status();
  EXPECT_EQ(pausing->state(), v1::JOB_STATE_PAUSING);
  const std::vector<v1::Stop> stops = StopsSent("b");
  ASSERT_EQ(stops.size(), 1U);
  EXPECT_TRUE(stops[0].save());
  EXPECT_EQ(stops[0].grace_ms(), 600000);
  Stepped("a", 9);
  Saved("a", 9);
  Left("b", 1, "left after step 9, which is saved");
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_PAUSING) << "a process is left";
  Left("a", 0, "left after step 9, which is saved");
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_PAUSED);
  EXPECT_EQ(Job("j").pause().step(), 9);
  EXPECT_EQ(Job("j").reason(), "paused after step 9, which is saved");
}

TEST_F(ReconcilerPauseTest, ReportsFreeGpuMemory) {
  v1::FreedMemory two;
  two.set_gpus(2);
  PauseWith(two);
  EXPECT_EQ(Job("j").pause().freed_gpus(), 4);
  EXPECT_EQ(Job("j").reason(), "paused after step 9, which is saved; the memory of its 4 GPUs is released");
}

TEST_F(ReconcilerPauseTest, ReportsHeldGpuMemoryWithNodeAndDevice) {
  v1::FreedMemory held;
  held.set_gpus(1);
  for (int device = 0; device < 10; ++device) held.add_held()->set_device(device);
  held.mutable_held(0)->set_bytes(int64_t{3} << 30);
  PauseWith(held);
  const v1::Job::Pause pause = Job("j").pause();
  EXPECT_EQ(pause.freed_gpus(), 3);
  ASSERT_EQ(pause.held_memory_size(), 8);
  EXPECT_EQ(pause.held_memory(0), "b cuda:0 3.00 GiB");
  EXPECT_EQ(pause.held_memory(1), "b cuda:1 of unknown size");
  EXPECT_EQ(pause.held_memory(7), "and 3 more");
  EXPECT_THAT(Job("j").reason(), testing::HasSubstr("; GPU memory is not released: b cuda:0 3.00 GiB, b "));
}

TEST_F(ReconcilerPauseTest, PausedJobHoldsNoSlotsAndResumes) {
  RunOn({"a"});
  Pause("j").IgnoreError();
  Saved("a", 9);
  Left("a", 0, "left after step 9, which is saved");
  Sent("a");
  Submit("other", 1, 1);
  EXPECT_EQ(StateOf("other"), v1::JOB_STATE_STARTING);
  Exit("a", "other", 0, 0);
  Stopped("a", "other");
  Sent("a");
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_PAUSED);
  ASSERT_TRUE(Resume("j").ok());
  reconciler_->RunOnce();
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_STARTING);
  const std::vector<v1::Launch> launches = LaunchesSent("a");
  ASSERT_EQ(launches.size(), 1U);
  EXPECT_EQ(launches[0].attempt(), 2);
  EXPECT_EQ(launches[0].checkpoint_step(), 9);
  EXPECT_FALSE(Job("j").has_pause());
}

TEST_F(ReconcilerPauseTest, PausedAttemptDoesNotCount) {
  Attach("a", 1);
  Submit("j", 1, 1, /*max_attempts=*/2);
  Ready("a", "j", 0);
  Pause("j").IgnoreError();
  Left("a", 0, "left before the first step");
  Resume("j").IgnoreError();
  reconciler_->RunOnce();
  for (const int attempt : {2, 3}) {
    Ready("a", "j", 0, attempt);
    Exit("a", "j", 0, 1, attempt);
    Advance(absl::Seconds(1));
    Stopped("a", "j", attempt);
    Advance(absl::Seconds(5));
  }
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_FAILED) << Job("j").reason();
  EXPECT_EQ(Job("j").attempt(), 3) << "two that count, and the one that was paused";
}

TEST_F(ReconcilerPauseTest, ReportsLostStepsWithRankError) {
  RunOn({"a"});
  Saved("a", 5);
  Stepped("a", 7);
  Pause("j", 1000).IgnoreError();
  Left("a", 0, "left after step 7 without saving it: 0.2 s are too short");
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_PAUSED);
  EXPECT_EQ(Job("j").pause().step(), 5);
  EXPECT_EQ(Job("j").pause().lost_steps(), 2);
  EXPECT_THAT(Job("j").reason(), HasSubstr("0.2 s are too short"));
}

TEST_F(ReconcilerPauseTest, TimeoutIsNotBlamedOnAgent) {
  for (const int64_t grace_ms : {0, 4000}) {
    RunOn({"a"});
    Stepped("a", 7);
    Pause("j", grace_ms).IgnoreError();
    v1::RankExit killed;
    killed.set_signal(9);
    killed.set_cancelled(true);
    ExitWith("a", "j", 0, killed);
    Stopped("a", "j");
    EXPECT_EQ(StateOf("j"), v1::JOB_STATE_PAUSED);
    EXPECT_THAT(
        Job("j").reason(),
        HasSubstr(grace_ms == 0 ? "7 steps are lost: the ranks had no time to save (--grace 0)"
                                : "7 steps are lost: rank 0 on a had not exited when its grace ended"));
    Cancel("j").IgnoreError();
    ASSERT_TRUE(store_->Delete("j").ok());
    Detach("a");
  }
}

TEST_F(ReconcilerPauseTest, RemainingRanksLeaveImmediatelyAfterRankDied) {
  RunOn({"a", "b"});
  Saved("a", 5);
  Stepped("a", 7);
  Pause("j").IgnoreError();
  Sent("a");
  Exit("b", "j", 1, 1);
  const std::vector<v1::Stop> stops = StopsSent("a");
  ASSERT_EQ(stops.size(), 1U);
  EXPECT_FALSE(stops[0].save());
  Stopped("b", "j");
  Left("a", 0, "stopped");
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_PAUSED);
  EXPECT_THAT(Job("j").reason(), HasSubstr("2 steps after it are lost: rank 1 on b failed"));
}

// Regression: the reason blamed rank 0, which was on the healthy node.
TEST_F(ReconcilerPauseTest, LostStepsNameSilentNodeAfterItsReconnect) {
  RunOn({"a", "b"});
  Saved("a", 5);
  Stepped("a", 7);
  Pause("j").IgnoreError();
  Detach("b");
  outboxes_.erase("b");
  Advance(absl::Seconds(20));
  Left("a", 0, "stopped at step 7");
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_PAUSING);
  Attach("b", 1, {{"j", 1}});
  Left("b", 1, "stopped at step 7");
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_PAUSED);
  EXPECT_THAT(Job("j").reason(),
              HasSubstr("2 steps after it are lost: node b was lost before its ranks had saved"));
}

TEST_F(ReconcilerPauseTest, RejectsPauseWithoutCheckpoints) {
  saves_ = false;
  RunOn({"a"});
  const absl::StatusOr<v1::Job> refused = Pause("j");
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(refused.status().message(), HasSubstr("checkpoint.dir"));
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_RUNNING);
}

TEST_F(ReconcilerPauseTest, HoldsQueuedJob) {
  saves_ = false;
  Submit("j", 1, 1);
  EXPECT_EQ(Pause("j")->state(), v1::JOB_STATE_PAUSED);
  Attach("a", 1);
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_PAUSED);
  Resume("j").IgnoreError();
  reconciler_->RunOnce();
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_STARTING);
}

TEST_F(ReconcilerPauseTest, PauseAndResumeAreIdempotent) {
  RunOn({"a"});
  ASSERT_TRUE(Resume("j").ok()) << "resuming a running job is a no-op";
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_RUNNING);
  Pause("j").IgnoreError();
  Sent("a");
  const int64_t revision = Job("j").revision();
  EXPECT_EQ(Pause("j")->revision(), revision);
  EXPECT_TRUE(StopsSent("a").empty());
  Left("a", 0, "left before the first step");
  const int64_t paused = Job("j").revision();
  EXPECT_EQ(Pause("j")->revision(), paused);
}

// Regression: it was omitted silently.
TEST_F(ReconcilerPauseTest, NewReasonWhileLeavingIsRecordedOnce) {
  RunOn({"a"});
  Pause("j").IgnoreError();
  for (int again = 0; again < 2; ++again) {
    const auto pausing = reconciler_->Pause("j", "the disk is full", 600000);
    ASSERT_TRUE(pausing.ok()) << pausing.status();
    EXPECT_EQ(pausing->reason(), "the ranks are leaving: the disk is full");
    EXPECT_EQ(pausing->events_size(), Job("j").events_size());
    const auto told =
        std::count_if(pausing->events().begin(), pausing->events().end(), [](const v1::Job::Event& event) {
          return event.message() == "the ranks are leaving: the disk is full";
        });
    EXPECT_EQ(told, 1);
  }
}

TEST_F(ReconcilerPauseTest, NewReasonWhilePausedIsRecordedOnce) {
  Submit("j", 1, 1);
  ASSERT_TRUE(reconciler_->Pause("j", "the disk is full", 600000).ok());
  const int64_t revision = Job("j").revision();
  EXPECT_EQ(reconciler_->Pause("j", "the disk is full", 600000)->revision(), revision);
  for (int again = 0; again < 2; ++again) {
    const auto paused = reconciler_->Pause("j", "its data moves", 600000);
    ASSERT_TRUE(paused.ok()) << paused.status();
    EXPECT_EQ(paused->state(), v1::JOB_STATE_PAUSED);
    EXPECT_EQ(paused->reason(), "stays paused: its data moves");
    EXPECT_EQ(paused->revision(), revision + 1);
  }
}

TEST_F(ReconcilerPauseTest, NewReasonOfCancelIsRecordedOnce) {
  RunOn({"a"});
  ASSERT_TRUE(reconciler_->Cancel("j", "the disk is full", 600000).ok());
  const int64_t revision = Job("j").revision();
  EXPECT_EQ(reconciler_->Cancel("j", "the disk is full", 600000)->revision(), revision);
  EXPECT_EQ(reconciler_->Cancel("j", "", 600000)->revision(), revision);
  for (int again = 0; again < 2; ++again) {
    const auto leaving = reconciler_->Cancel("j", "its data moves", 600000);
    ASSERT_TRUE(leaving.ok()) << leaving.status();
    EXPECT_EQ(leaving->reason(), "the ranks leave already: its data moves");
    EXPECT_EQ(leaving->revision(), revision + 1);
  }
}

TEST_F(ReconcilerPauseTest, SecondPauseMayShortenGrace) {
  RunOn({"a"});
  Pause("j").IgnoreError();
  Sent("a");
  Pause("j", 2000).IgnoreError();
  const std::vector<v1::Stop> stops = StopsSent("a");
  ASSERT_EQ(stops.size(), 1U);
  EXPECT_EQ(stops[0].grace_ms(), 2000);
}

TEST_F(ReconcilerPauseTest, ResumeWhileLeavingContinuesAfterPause) {
  RunOn({"a"});
  Pause("j").IgnoreError();
  EXPECT_EQ(Resume("j")->state(), v1::JOB_STATE_PAUSING);
  Restart();
  Attach("a", 1, {{"j", 1}});
  Saved("a", 9);
  Left("a", 0, "left after step 9, which is saved");
  reconciler_->RunOnce();
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_STARTING);
  EXPECT_EQ(Job("j").attempt(), 2);
}

TEST_F(ReconcilerPauseTest, LastCommandWins) {
  RunOn({"a"});
  Pause("j").IgnoreError();
  Resume("j").IgnoreError();
  Pause("j").IgnoreError();
  Left("a", 0, "left before the first step");
  reconciler_->RunOnce();
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_PAUSED);
}

TEST_F(ReconcilerPauseTest, FinishedJobSucceedsDespitePause) {
  RunOn({"a"});
  Pause("j").IgnoreError();
  Exit("a", "j", 0, 0);
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_SUCCEEDED);
}

TEST_F(ReconcilerPauseTest, RestartKeepsPauseAndRemainingGrace) {
  RunOn({"a"});
  Stepped("a", 7);
  Pause("j", 60000).IgnoreError();
  clock_.Advance(absl::Seconds(20));
  Restart();
  Attach("a", 1, {{"j", 1}});
  const std::vector<v1::Stop> stops = StopsSent("a");
  ASSERT_FALSE(stops.empty());
  EXPECT_TRUE(stops[0].save());
  EXPECT_EQ(stops[0].grace_ms(), 40000);
  Saved("a", 9);
  Left("a", 0, "left after step 9, which is saved");
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_PAUSED);
  Restart();
  Attach("a", 1);
  Advance(absl::Seconds(30));
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_PAUSED);
  EXPECT_EQ(Job("j").pause().step(), 9);
}

TEST_F(ReconcilerPauseTest, PauseHoldsJobBeforeItResumes) {
  RunOn({"a"});
  Pause("j").IgnoreError();
  Resume("j").IgnoreError();
  Left("a", 0, "left before the first step");
  ASSERT_EQ(StateOf("j"), v1::JOB_STATE_PAUSED) << "it continues in the next tick";
  EXPECT_TRUE(reconciler_->Pause("j", "", 1000).ok());
  reconciler_->RunOnce();
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_PAUSED);
}

TEST_F(ReconcilerPauseTest, FailedAttemptKeepsGraceAfterRestart) {
  RunOn({"a", "b"});
  Exit("a", "j", 0, 1);
  Advance(absl::Seconds(1));
  ASSERT_EQ(StateOf("j"), v1::JOB_STATE_STOPPING);
  Pause("j").IgnoreError();
  Restart();
  Attach("b", 1, {{"j", 1}});
  const std::vector<v1::Stop> stops = StopsSent("b");
  ASSERT_FALSE(stops.empty());
  EXPECT_FALSE(stops[0].save());
  EXPECT_LE(stops[0].grace_ms(), 10000);
}

// Regression: the second pause let the ranks of the failed attempt save.
TEST_F(ReconcilerPauseTest, FailedAttemptSavesNothingWhenPausedAgain) {
  for (const char* node : {"a", "b"}) Attach(node, 1);
  Submit("j", 2, 1, /*max_attempts=*/3, "/runs/1");
  Ready("a", "j", 0);
  Ready("b", "j", 1);
  Exit("a", "j", 0, 9);
  Advance(absl::Seconds(1));
  ASSERT_EQ(StateOf("j"), v1::JOB_STATE_STOPPING);
  ASSERT_TRUE(Pause("j", 60000).ok());
  ASSERT_TRUE(Pause("j", 5000).ok());
  EXPECT_EQ(Job("j").reason(), "the ranks leave");
  for (const v1::Stop& stop : StopsSent("b")) EXPECT_FALSE(stop.save());
}

TEST_F(ReconcilerPauseTest, CancelsPausedJobAndRejectsPauseOfCancelledJob) {
  RunOn({"a"});
  Pause("j").IgnoreError();
  EXPECT_EQ(Cancel("j")->state(), v1::JOB_STATE_CANCELLING);
  EXPECT_EQ(Pause("j").status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Resume("j").status().code(), absl::StatusCode::kFailedPrecondition);
  Left("a", 0, "left before the first step");
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_CANCELLED);
  Submit("k", 2, 1);
  Pause("k").IgnoreError();
  EXPECT_EQ(Cancel("k")->state(), v1::JOB_STATE_CANCELLED);
  EXPECT_EQ(Pause("k").status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(Resume("k").status().message(), HasSubstr("cancelled while it was paused"));
  EXPECT_EQ(Pause("nobody").status().code(), absl::StatusCode::kNotFound);
}

TEST_F(ReconcilerPauseTest, HoldsFailedJobInsteadOfRelaunch) {
  Attach("a", 1);
  Submit("j", 1, 1, /*max_attempts=*/3);
  Ready("a", "j", 0);
  Saved("a", 5);
  Exit("a", "j", 0, 1);
  Advance(absl::Seconds(1));
  ASSERT_EQ(StateOf("j"), v1::JOB_STATE_STOPPING);
  Pause("j").IgnoreError();
  Stopped("a", "j");
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_PAUSED);
  EXPECT_EQ(Job("j").pause().step(), 5);
  EXPECT_EQ(Job("j").drains_since_checkpoint(), 0) << "it counts";
}

TEST_F(ReconcilerPauseTest, PausedJobWithoutRanksWaitsOnlyForStore) {
  RunOn({"a"});
  ASSERT_TRUE(Pause("j").ok());
  std::optional<FullDisk> full(std::in_place);
  Stopped("a", "j");
  Advance(absl::Seconds(2));
  const v1::Job meanwhile = Job("j");
  full.reset();
  EXPECT_EQ(meanwhile.state(), v1::JOB_STATE_PAUSING);
  EXPECT_THAT(meanwhile.reason(), StartsWith("waiting only for the store: "));
  Advance(absl::Seconds(2));
  EXPECT_EQ(store_->Get("j")->state(), v1::JOB_STATE_PAUSED);
}

}  // namespace
}  // namespace fsdpd
