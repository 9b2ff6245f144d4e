#include "client/connect/wait_condition.h"

#include <gtest/gtest.h>

namespace fsdpd {
namespace {

v1::Job JobIn(v1::JobState state, int64_t step = 0) {
  v1::Job job;
  job.set_state(state);
  job.mutable_spec()->mutable_train()->set_steps(100);
  if (step > 0) job.mutable_last_step()->set_step(step);
  return job;
}

WaitVerdict Of(const char* text, const v1::Job& job) { return Judge(*ParseWaitCondition(text), job); }

TEST(WaitCondition, StateIsImpossibleAfterOtherEnd) {
  EXPECT_EQ(Of("state=running", JobIn(v1::JOB_STATE_QUEUED)), WaitVerdict::kNotYet);
  EXPECT_EQ(Of("state=running", JobIn(v1::JOB_STATE_RUNNING)), WaitVerdict::kMet);
  EXPECT_EQ(Of("state=Running,paused", JobIn(v1::JOB_STATE_PAUSED)), WaitVerdict::kMet);
  EXPECT_EQ(Of("state=running", JobIn(v1::JOB_STATE_SUCCEEDED)), WaitVerdict::kNever);
  EXPECT_EQ(Of("state=succeeded", JobIn(v1::JOB_STATE_FAILED)), WaitVerdict::kNever);
}

TEST(WaitCondition, EndedMatchesAllEndStates) {
  EXPECT_EQ(Of("ended", JobIn(v1::JOB_STATE_CANCELLED)), WaitVerdict::kMet);
  EXPECT_EQ(Of("ended", JobIn(v1::JOB_STATE_PAUSED)), WaitVerdict::kNotYet);
}

TEST(WaitCondition, StepIsMetOrImpossible) {
  EXPECT_EQ(Of("step=20", JobIn(v1::JOB_STATE_RUNNING, 19)), WaitVerdict::kNotYet);
  EXPECT_EQ(Of("step=20", JobIn(v1::JOB_STATE_RUNNING, 20)), WaitVerdict::kMet);
  EXPECT_EQ(Of("step=20", JobIn(v1::JOB_STATE_FAILED, 20)), WaitVerdict::kMet);
  EXPECT_EQ(Of("step=20", JobIn(v1::JOB_STATE_FAILED, 19)), WaitVerdict::kNever);
  EXPECT_EQ(Of("step=101", JobIn(v1::JOB_STATE_QUEUED)), WaitVerdict::kNever) << "it makes 100";
}

// Neither job has last_step, which is cleared when a job pauses or its next attempt starts.
TEST(WaitCondition, StepOfEarlierAttemptCounts) {
  v1::Job paused = JobIn(v1::JOB_STATE_PAUSED);
  paused.add_checkpoints()->set_step(65);
  EXPECT_EQ(Of("step=30", paused), WaitVerdict::kMet);
  EXPECT_EQ(Of("step=66", paused), WaitVerdict::kNotYet);
  v1::Job restored = JobIn(v1::JOB_STATE_SUCCEEDED);
  restored.mutable_restored()->set_step(100);
  EXPECT_EQ(Of("step=100", restored), WaitVerdict::kMet);
}

TEST(WaitCondition, ListsValidForms) {
  EXPECT_EQ(ParseWaitCondition("state=runing").status().message(),
            "unknown state 'runing'; did you mean running?");
  for (const char* bad : {"", "state", "state=", "step=0", "step=x", "running", "state=running,"})
    EXPECT_FALSE(ParseWaitCondition(bad).ok()) << bad;
}

}  // namespace
}  // namespace fsdpd
