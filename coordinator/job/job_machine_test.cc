#include "coordinator/job/job_machine.h"

#include <gtest/gtest.h>

#include <limits>
#include <set>

#include "coordinator/job/attempt_ref.h"

namespace fsdpd {
namespace {

std::vector<JobEvent> AllEvents() {
  std::vector<JobEvent> events;
  for (int i = 0; i < kJobEvents; ++i) events.push_back(static_cast<JobEvent>(i));
  return events;
}

v1::Job QueuedJob() {
  v1::Job job;
  job.set_id("j");
  job.set_state(v1::JOB_STATE_QUEUED);
  return job;
}

absl::Time At(int64_t seconds) { return absl::FromUnixSeconds(seconds); }

v1::StepReport Step(int64_t step, double loss, int64_t mallocs, int64_t peak) {
  v1::StepReport report;
  report.set_step(step);
  report.set_loss(loss);
  report.mutable_memory()->set_device_mallocs(mallocs);
  report.mutable_memory()->set_peak_bytes(peak);
  return report;
}

TEST(JobMachine, OnlyARetryLeavesAnEndedStateAndNothingLeavesSuccess) {
  for (const v1::JobState state : AllJobStates()) {
    if (!IsEnded(state)) continue;
    for (const JobEvent event : AllEvents()) {
      if (event == JobEvent::kUserRetry && state != v1::JOB_STATE_SUCCEEDED) {
        EXPECT_EQ(*NextState(state, event), v1::JOB_STATE_QUEUED);
        continue;
      }
      EXPECT_EQ(NextState(state, event).status().code(), absl::StatusCode::kFailedPrecondition)
          << ShortName(state) << " " << NameOf(event);
    }
  }
}

// Messages about attempts with higher numbers are dropped.
TEST(JobMachine, RejectsAttemptsAboveTheMaximum) {
  v1::Job job = QueuedJob();
  job.set_attempt(kMaxAttempt - 1);
  EXPECT_TRUE(Apply(JobEvent::kLaunch, "", At(1), &job).ok());
  EXPECT_EQ(job.attempt(), kMaxAttempt);
  job.set_state(v1::JOB_STATE_QUEUED);
  EXPECT_TRUE(absl::IsFailedPrecondition(Apply(JobEvent::kLaunch, "", At(2), &job)));
  EXPECT_EQ(job.attempt(), kMaxAttempt);
  EXPECT_EQ(job.state(), v1::JOB_STATE_QUEUED);
}

TEST(JobMachine, EveryStateIsReachableFromQueued) {
  std::set<v1::JobState> seen = {v1::JOB_STATE_QUEUED};
  size_t before = 0;
  while (seen.size() != before) {
    before = seen.size();
    for (const v1::JobState state : std::set<v1::JobState>(seen)) {
      for (const JobEvent event : AllEvents()) {
        if (const auto next = NextState(state, event); next.ok()) seen.insert(*next);
      }
    }
  }
  EXPECT_EQ(seen.size(), AllJobStates().size());
}

TEST(JobMachine, EveryLiveStateCanReachAnEndedOne) {
  for (const v1::JobState start : AllJobStates()) {
    std::set<v1::JobState> seen = {start};
    bool ended = false;
    for (size_t round = 0; round < AllJobStates().size(); ++round) {
      for (const v1::JobState state : std::set<v1::JobState>(seen)) {
        ended |= IsEnded(state);
        for (const JobEvent event : AllEvents()) {
          if (const auto next = NextState(state, event); next.ok()) seen.insert(*next);
        }
      }
    }
    EXPECT_TRUE(ended) << ShortName(start);
  }
}

TEST(JobMachine, OnlyNoteKeepsTheState) {
  for (const v1::JobState state : AllJobStates()) {
    for (const JobEvent event : AllEvents()) {
      const auto next = NextState(state, event);
      if (next.ok()) {
        EXPECT_EQ(*next == state, event == JobEvent::kNote);
      }
    }
  }
}

TEST(JobMachine, HoldsNodesDuringPreflightOnly) {
  for (const JobEvent event : {JobEvent::kLaunch, JobEvent::kUnplace, JobEvent::kCancel, JobEvent::kPause}) {
    v1::Job job = QueuedJob();
    ASSERT_TRUE(Apply(JobEvent::kPreflight, "node-0 is measured first", At(1), &job).ok());
    EXPECT_FALSE(HasAttempt(job.state()));
    EXPECT_EQ(job.attempt(), 0);
    job.add_reserved_nodes()->set_node("node-0");
    ASSERT_TRUE(Apply(JobEvent::kNote, "still", At(2), &job).ok());
    EXPECT_EQ(job.reserved_nodes_size(), 1);
    ASSERT_TRUE(Apply(event, "", At(3), &job).ok()) << NameOf(event);
    EXPECT_EQ(job.reserved_nodes_size(), 0);
    EXPECT_EQ(job.attempt(), event == JobEvent::kLaunch ? 1 : 0);
  }
}

TEST(JobMachine, RefusedEventLeavesTheJobUnchanged) {
  v1::Job job = QueuedJob();
  const std::string before = job.SerializeAsString();
  EXPECT_FALSE(Apply(JobEvent::kReady, "no", At(1), &job).ok());
  EXPECT_EQ(job.SerializeAsString(), before);
}

TEST(JobMachine, ApplyRecordsReasonRevisionTimesAndEvent) {
  v1::Job job = QueuedJob();
  ASSERT_TRUE(Apply(JobEvent::kLaunch, "2 ranks on node-0", At(10), &job).ok());
  EXPECT_EQ(job.state(), v1::JOB_STATE_STARTING);
  EXPECT_EQ(job.attempt(), 1);
  EXPECT_EQ(job.revision(), 1);
  EXPECT_EQ(job.start_unix_nanos(), absl::ToUnixNanos(At(10)));
  ASSERT_TRUE(Apply(JobEvent::kFinish, "all ranks finished", At(20), &job).ok());
  EXPECT_EQ(job.end_unix_nanos(), absl::ToUnixNanos(At(20)));
  ASSERT_EQ(job.events_size(), 2);
  EXPECT_EQ(job.events(0).message(), "2 ranks on node-0");
  EXPECT_EQ(job.events(1).state(), v1::JOB_STATE_SUCCEEDED);
}

TEST(JobMachine, LimitsEventsToTheFirstAndTheNewest) {
  v1::Job job = QueuedJob();
  for (int i = 0; i < 500; ++i) {
    ASSERT_TRUE(Apply(JobEvent::kNote, "reason " + std::to_string(i), At(i), &job).ok());
  }
  ASSERT_EQ(job.events_size(), kMaxJobEvents);
  EXPECT_EQ(job.events(0).message(), "reason 0");
  EXPECT_EQ(job.events(kMaxJobEvents - 1).message(), "reason 499");
  EXPECT_EQ(job.revision(), 500);
}

TEST(JobMachine, RelaunchClearsStepsOfTheLastAttempt) {
  v1::Job job = QueuedJob();
  ASSERT_TRUE(Apply(JobEvent::kLaunch, "", At(1), &job).ok());
  ASSERT_TRUE(TakeStep(Step(1, 5.5, 3, 100), &job));
  ASSERT_TRUE(Apply(JobEvent::kFail, "", At(2), &job).ok());
  ASSERT_TRUE(Apply(JobEvent::kRetry, "", At(3), &job).ok());
  EXPECT_FALSE(job.has_last_step());  // Not shown while it is queued, either.
  ASSERT_TRUE(Apply(JobEvent::kLaunch, "", At(4), &job).ok());
  EXPECT_EQ(job.attempt(), 2);
  EXPECT_FALSE(job.has_last_step());
  EXPECT_EQ(job.peak_bytes(), 0);
}

TEST(JobMachine, LaunchedJobIsPausedOnceItsRanksAreGone) {
  for (const v1::JobState state : AllJobStates()) {
    const auto next = NextState(state, JobEvent::kPause);
    if (next.ok()) {
      EXPECT_EQ(*next, HasAttempt(state) ? v1::JOB_STATE_PAUSING : v1::JOB_STATE_PAUSED) << ShortName(state);
    }
  }
  EXPECT_EQ(*NextState(v1::JOB_STATE_PAUSING, JobEvent::kRanksGone), v1::JOB_STATE_PAUSED);
}

TEST(JobMachine, PausedJobHidesStepsThatAreLost) {
  v1::Job job = QueuedJob();
  ASSERT_TRUE(Apply(JobEvent::kLaunch, "", At(1), &job).ok());
  ASSERT_TRUE(Apply(JobEvent::kReady, "", At(1), &job).ok());
  ASSERT_TRUE(TakeStep(Step(7, 5.5, 3, 100), &job));
  ASSERT_TRUE(Apply(JobEvent::kPause, "", At(2), &job).ok());
  EXPECT_TRUE(job.has_last_step());
  ASSERT_TRUE(Apply(JobEvent::kRanksGone, "", At(3), &job).ok());
  EXPECT_FALSE(job.has_last_step());
  EXPECT_EQ(job.attempt(), 1);
}

TEST(JobMachine, RetriedJobHasNoEnd) {
  v1::Job job = QueuedJob();
  ASSERT_TRUE(Apply(JobEvent::kCancel, "", At(1), &job).ok());
  EXPECT_NE(job.end_unix_nanos(), 0);
  ASSERT_TRUE(Apply(JobEvent::kUserRetry, "", At(2), &job).ok());
  EXPECT_EQ(job.end_unix_nanos(), 0);
}

TEST(TakeStep, TakesLastAndBestValidation) {
  v1::Job job = QueuedJob();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  int64_t step = 0;
  for (const double loss : {nan, 3.0, 2.0, 2.5, nan}) {
    v1::StepReport report = Step(++step, 5.5, 3, 100);
    report.mutable_evaluation()->set_loss(loss);
    report.mutable_evaluation()->set_tokens(40);
    ASSERT_TRUE(TakeStep(report, &job));
    ASSERT_TRUE(TakeStep(Step(++step, 5.5, 3, 100), &job));  // Without an evaluation.
    EXPECT_EQ(job.last_validation().step(), step - 1);
  }
  EXPECT_EQ(job.last_validation().tokens(), 40);
  EXPECT_EQ(job.best_validation().step(), 5);
  EXPECT_EQ(job.best_validation().loss(), 2.0);
}

TEST(TakeStep, CountsMallocsFromStepTwoOn) {
  v1::Job job = QueuedJob();
  TakeStep(Step(1, 5.5, 40, 100), &job);
  EXPECT_EQ(job.steady_device_mallocs(), 0);
  TakeStep(Step(2, 5.0, 50, 300), &job);
  EXPECT_EQ(job.steady_device_mallocs(), 0);
  TakeStep(Step(3, 4.5, 50, 200), &job);
  EXPECT_EQ(job.steady_device_mallocs(), 0);
  TakeStep(Step(4, 4.0, 53, 200), &job);
  TakeStep(Step(7, 3.5, 57, 200), &job);
  EXPECT_EQ(job.steady_device_mallocs(), 7);
  EXPECT_EQ(job.first_loss(), 5.5);
  EXPECT_EQ(job.peak_bytes(), 300);
  EXPECT_EQ(job.revision(), 0);
}

TEST(TakeStep, IgnoresReportsThatAreNotNewer) {
  v1::Job job = QueuedJob();
  EXPECT_TRUE(TakeStep(Step(4, 4.0, 0, 0), &job));
  EXPECT_FALSE(TakeStep(Step(4, 9.0, 0, 0), &job));
  EXPECT_FALSE(TakeStep(Step(3, 9.0, 0, 0), &job));
  EXPECT_EQ(job.last_step().loss(), 4.0);
}

}  // namespace
}  // namespace fsdpd
