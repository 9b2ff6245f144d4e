#include "coordinator/job/recovery.h"

#include <gtest/gtest.h>

#include "coordinator/job/job_machine.h"

namespace fsdpd {
namespace {

using Seconds = std::map<std::string, double>;

class RecoveryTest : public ::testing::Test {
 protected:
  RecoveryTest() {
    job_.set_state(v1::JOB_STATE_QUEUED);
    AddEvent(v1::EVENT_KIND_SUBMITTED, "admitted", now_, &job_);
    Advance(JobEvent::kLaunch, 1);
    Advance(JobEvent::kReady, 1);
  }
  void Advance(JobEvent event, double seconds) {
    now_ += absl::Seconds(seconds);
    ASSERT_TRUE(Apply(event, "", now_, &job_).ok()) << NameOf(event);
  }
  void Step(int64_t step) { job_.mutable_last_step()->set_step(step); }

  absl::Time now_ = absl::FromUnixSeconds(1'700'000'000);
  v1::Job job_;
};

TEST_F(RecoveryTest, FirstAttemptIsNotRecovery) {
  EXPECT_EQ(RecoveryOf(job_), std::nullopt);
  EXPECT_EQ(RecoveryOf(v1::Job()), std::nullopt);
}

TEST_F(RecoveryTest, PhasesAddUpToRecoveryTime) {
  Advance(JobEvent::kFail, 100);
  Advance(JobEvent::kNote, 1);
  Advance(JobEvent::kRetry, 2);
  Advance(JobEvent::kPreflight, 4);
  Advance(JobEvent::kUnplace, 8);
  Advance(JobEvent::kPreflight, 16);
  Advance(JobEvent::kLaunch, 32);
  job_.mutable_restored()->set_seconds(24);
  EXPECT_EQ(RecoveryOf(job_), std::nullopt) << "not before all ranks are up";
  Advance(JobEvent::kReady, 64);
  Advance(JobEvent::kNote, 1000);
  EXPECT_EQ(RecoveryOf(job_),
            (Seconds{{"stop", 3}, {"queue", 20}, {"preflight", 40}, {"start", 40}, {"load", 24}}));
}

TEST_F(RecoveryTest, FailedStartIsPartOfRecovery) {
  Advance(JobEvent::kFail, 1);
  Advance(JobEvent::kRetry, 2);
  Advance(JobEvent::kLaunch, 3);
  Advance(JobEvent::kFail, 5);
  Advance(JobEvent::kRetry, 7);
  Advance(JobEvent::kLaunch, 11);
  Advance(JobEvent::kReady, 13);
  EXPECT_EQ(RecoveryOf(job_),
            (Seconds{{"stop", 9}, {"queue", 14}, {"preflight", 0}, {"start", 18}, {"load", 0}}));
}

TEST_F(RecoveryTest, PauseAndRetryAreNotRecovery) {
  Advance(JobEvent::kFail, 1);
  Advance(JobEvent::kRetry, 1);
  Advance(JobEvent::kPause, 1);
  Advance(JobEvent::kResume, 1);
  Advance(JobEvent::kLaunch, 1);
  Advance(JobEvent::kReady, 1);
  EXPECT_EQ(RecoveryOf(job_), std::nullopt);
  Advance(JobEvent::kFail, 1);
  Advance(JobEvent::kGiveUp, 1);
  Advance(JobEvent::kUserRetry, 1);
  Advance(JobEvent::kLaunch, 1);
  Advance(JobEvent::kReady, 1);
  EXPECT_EQ(RecoveryOf(job_), std::nullopt);
}

TEST_F(RecoveryTest, DateSetBackIsNotNegative) {
  Advance(JobEvent::kFail, 1);
  Advance(JobEvent::kRetry, -1000);
  Advance(JobEvent::kLaunch, 3);
  Advance(JobEvent::kReady, 4);
  EXPECT_EQ(RecoveryOf(job_),
            (Seconds{{"stop", 0}, {"queue", 3}, {"preflight", 0}, {"start", 4}, {"load", 0}}));
}

TEST_F(RecoveryTest, ReplayEndsAtNewestStep) {
  for (const JobEvent event : {JobEvent::kFail, JobEvent::kRetry, JobEvent::kLaunch}) Advance(event, 1);
  job_.mutable_ledger()->set_newest_step(20);
  job_.mutable_restored()->set_step(15);
  Advance(JobEvent::kReady, 1);
  EXPECT_FALSE(HasNoReplay(job_));
  now_ += absl::Seconds(6);
  Step(19);
  EXPECT_EQ(ReplayOf(job_, 0, 20, now_), std::nullopt);
  Step(21);  // Not every step is reported.
  EXPECT_EQ(ReplayOf(job_, 19, 20, now_), std::optional(6.0));
  Step(22);
  EXPECT_EQ(ReplayOf(job_, 21, 21, now_), std::nullopt);
}

TEST_F(RecoveryTest, NoReplayWithoutLostSteps) {
  for (const JobEvent event : {JobEvent::kFail, JobEvent::kRetry, JobEvent::kLaunch}) Advance(event, 1);
  EXPECT_TRUE(HasNoReplay(job_)) << "no step was reported";
  job_.mutable_ledger()->set_newest_step(20);
  EXPECT_FALSE(HasNoReplay(job_));
  Step(20);
  EXPECT_EQ(ReplayOf(job_, 0, 20, now_), std::nullopt);
  Advance(JobEvent::kReady, 1);
  EXPECT_TRUE(HasNoReplay(job_));
  job_.clear_last_step();
  job_.mutable_restored()->set_step(20);
  EXPECT_TRUE(HasNoReplay(job_));
  Step(21);
  EXPECT_EQ(ReplayOf(job_, 0, 20, now_), std::nullopt);
}

TEST_F(RecoveryTest, InterruptedReplayEndsAtInterruption) {
  EXPECT_EQ(BrokenReplayOf(job_, now_), std::nullopt) << "the first attempt's failure";
  for (const JobEvent event : {JobEvent::kFail, JobEvent::kRetry, JobEvent::kLaunch}) Advance(event, 1);
  job_.mutable_ledger()->set_newest_step(20);
  job_.mutable_restored()->set_step(15);
  Advance(JobEvent::kReady, 1);
  Step(18);
  EXPECT_EQ(BrokenReplayOf(job_, now_ + absl::Seconds(6)), std::optional(6.0));
  Step(20);
  EXPECT_EQ(BrokenReplayOf(job_, now_ + absl::Seconds(8)), std::nullopt) << "it was over";
}

TEST_F(RecoveryTest, NoReplayAfterUserRequest) {
  for (const JobEvent event :
       {JobEvent::kPause, JobEvent::kRanksGone, JobEvent::kResume, JobEvent::kLaunch, JobEvent::kReady})
    Advance(event, 1);
  Step(20);
  EXPECT_EQ(ReplayOf(job_, 0, 20, now_), std::nullopt);
  job_.mutable_ledger()->set_newest_step(30);
  EXPECT_EQ(BrokenReplayOf(job_, now_), std::nullopt);
}

}  // namespace
}  // namespace fsdpd
