#include "coordinator/attempt/job_pause.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "coordinator/job/job_machine.h"

namespace fsdpd {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A job that completed 12 steps, and saved 10 of them.
v1::Job Training() {
  v1::Job job;
  job.set_state(v1::JOB_STATE_RUNNING);
  job.set_attempt(2);
  job.mutable_spec()->mutable_train()->set_steps(100);
  job.mutable_spec()->mutable_checkpoint()->set_dir("/runs/7");
  job.mutable_last_step()->set_step(12);
  job.add_checkpoints()->set_step(10);
  job.mutable_pause()->set_grace_ms(1000);
  return job;
}

TEST(JobPause, RunningJobIsPausedOnlyIfItSaves) {
  v1::Job job = Training();
  EXPECT_THAT(WhyNotPaused(job, 1000), IsEmpty());
  job.mutable_spec()->mutable_checkpoint()->clear_dir();
  EXPECT_THAT(WhyNotPaused(job, 1000), HasSubstr("checkpoint.dir"));
  EXPECT_THAT(WhyNotPaused(job, 0), HasSubstr("checkpoint.dir"));
  job.set_state(v1::JOB_STATE_QUEUED);
  EXPECT_THAT(WhyNotPaused(job, 1000), IsEmpty()) << "an idle job loses nothing";
}

TEST(JobPause, JobWithFullDiskIsPausedOnlyWithoutSave) {
  v1::Job job = Training();
  job.mutable_failed_checkpoint()->set_step(12);
  job.mutable_failed_checkpoint()->set_error("no space left");
  EXPECT_THAT(WhyNotPaused(job, 1000), HasSubstr("no space left"));
  EXPECT_THAT(WhyNotPaused(job, 1000), HasSubstr("to resume after step 10"));
  EXPECT_THAT(WhyNotPaused(job, 0), IsEmpty());
}

TEST(JobPause, EveryStateIsPausedOrHasAReasonNotTo) {
  for (const v1::JobState state : AllJobStates()) {
    v1::Job job = Training();
    job.set_state(state);
    const bool there = state == v1::JOB_STATE_PAUSING || state == v1::JOB_STATE_PAUSED;
    EXPECT_EQ(WhyNotPaused(job, 1000).empty(), there || NextState(state, JobEvent::kPause).ok())
        << ShortName(state);
  }
}

TEST(JobPause, ResumesFromTheSavedStep) {
  v1::Job job = Training();
  job.add_checkpoints()->set_step(12);
  const v1::Job::Pause pause = PauseOf(job, "the disk was full");
  EXPECT_EQ(pause.step(), 12);
  EXPECT_EQ(pause.lost_steps(), 0);
  EXPECT_EQ(PausedReason(Training(), pause), "paused after step 12, which is saved");
}

TEST(JobPause, ReportsLostStepsWithTheReason) {
  const v1::Job::Pause pause = PauseOf(Training(), "rank 1 left");
  EXPECT_EQ(PausedReason(Training(), pause),
            "paused after step 10, which is saved; 2 steps after it are lost: rank 1 left");
  v1::Job failed = Training();
  failed.mutable_failed_checkpoint()->set_step(12);
  failed.mutable_failed_checkpoint()->set_error("no space left");
  EXPECT_EQ(PauseOf(failed, "rank 1 left").lost_steps_reason(),
            "the checkpoint of step 12 could not be written: no space left");
}

TEST(JobPause, ZeroGraceIsTheReasonForLostSteps) {
  v1::Job job = Training();
  job.mutable_pause()->set_grace_ms(0);
  EXPECT_EQ(PauseOf(job, "rank 1 was killed").lost_steps_reason(),
            "the ranks had no time to save (--grace 0)");
}

TEST(JobPause, ClaimsNothingAboutLostNodes) {
  const v1::Job::Pause pause = PauseOf(Training(), "rank 1 left", {"a"});
  EXPECT_EQ(pause.lost_steps(), 0);
  EXPECT_EQ(PausedReason(Training(), pause),
            "continues without node a; whether it saved after step 10 is unknown");
}

TEST(JobPause, JobThatLoadedACheckpointLosesOnlyItsOwnSteps) {
  v1::Job job = Training();
  job.clear_checkpoints();
  job.mutable_restored()->set_step(11);
  const v1::Job::Pause pause = PauseOf(job, "somebody was in a hurry");
  EXPECT_EQ(PausedReason(Training(), pause),
            "paused; it will start from scratch; 1 step is lost: somebody was in a hurry");
}

// Regression: the reason was that no step was completed.
TEST(JobPause, NamesStepsOfEarlierAttempt) {
  v1::Job job = Training();
  job.clear_checkpoints();
  job.mutable_previous_last_step()->Swap(job.mutable_last_step());
  job.clear_last_step();
  EXPECT_EQ(
      PausedReason(job, PauseOf(job, "")),
      "paused before attempt 2 completed a step; it will start from scratch: an earlier attempt reached "
      "step 12, and no checkpoint is saved");
  job.clear_previous_last_step();
  EXPECT_EQ(PausedReason(job, PauseOf(job, "")), "paused; no step was completed");
}

TEST(JobPause, PausedAttemptDoesNotCountUnlessItHadFailed) {
  v1::Job job = Training();
  KeepPause(PauseOf(job, ""), &job);
  EXPECT_EQ(job.drains_since_checkpoint(), 1);
  job.mutable_failure()->set_attempt(2);
  KeepPause(PauseOf(job, ""), &job);
  EXPECT_EQ(job.drains_since_checkpoint(), 1);
}

// A job that was preempted after step 13 was reported as never launched.
TEST(JobPause, CancelReportsWhereAJobCouldResume) {
  v1::Job job;
  job.set_state(v1::JOB_STATE_QUEUED);
  EXPECT_EQ(IdleCancelReason(job), "cancelled before it was launched");
  job.set_attempt(1);
  EXPECT_EQ(IdleCancelReason(job), "cancelled while it waited; nothing is saved");
  job.add_checkpoints()->set_step(13);
  EXPECT_EQ(IdleCancelReason(job), "cancelled while it waited; saved after step 13");
  job.set_state(v1::JOB_STATE_PAUSED);
  EXPECT_EQ(IdleCancelReason(job), "cancelled while it was paused; saved after step 13");
}

}  // namespace
}  // namespace fsdpd
