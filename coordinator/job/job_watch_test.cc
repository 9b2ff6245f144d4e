#include "coordinator/job/job_watch.h"

#include <gtest/gtest.h>

#include "coordinator/job/bad_steps.h"
#include "coordinator/job/job_ledger.h"
#include "coordinator/job/job_machine.h"

namespace fsdpd {
namespace {

using Got = JobWatch::Got;

v1::Job MakeJob(int64_t revision, v1::JobState state = v1::JOB_STATE_RUNNING, int64_t step = 0) {
  v1::Job job;
  job.set_id("j");
  job.set_revision(revision);
  job.set_state(state);
  if (step > 0) job.mutable_last_step()->set_step(step);
  return job;
}

Got Take(JobWatch* watch, v1::WatchJobResponse* update) { return watch->Next(absl::ZeroDuration(), update); }

// A list call copied all live jobs to find those whose stored record differs.
TEST(JobWatch, WaitingJobsAreSettledOnceStored) {
  JobBoard board;
  v1::Job job = MakeJob(1, v1::JOB_STATE_QUEUED);
  board.Publish(job);
  EXPECT_TRUE(board.Unsettled().empty());
  job.set_store_error("full");
  board.Replace(job);
  EXPECT_EQ(board.Unsettled().size(), 1u);
  board.Publish(MakeJob(2, v1::JOB_STATE_PAUSED));
  EXPECT_TRUE(board.Unsettled().empty());
  board.Publish(MakeJob(3, v1::JOB_STATE_RUNNING));
  EXPECT_EQ(board.Unsettled().size(), 1u);
  board.Publish(MakeJob(4, v1::JOB_STATE_SUCCEEDED));
  EXPECT_TRUE(board.Unsettled().empty());
}

TEST(JobWatch, StartsWithTheJobThenChangesAndStepsThenEnds) {
  JobBoard board;
  board.Publish(MakeJob(1));
  const auto watch = board.Watch("j", 0);
  board.PublishStep(MakeJob(1, v1::JOB_STATE_RUNNING, 5));
  board.Publish(MakeJob(2, v1::JOB_STATE_SUCCEEDED));
  v1::WatchJobResponse update;
  ASSERT_EQ(Take(watch.get(), &update), Got::kUpdate);
  EXPECT_EQ(update.job().revision(), 1);
  ASSERT_EQ(Take(watch.get(), &update), Got::kUpdate);
  EXPECT_EQ(update.step().step(), 5);
  ASSERT_EQ(Take(watch.get(), &update), Got::kUpdate);
  EXPECT_EQ(update.job().state(), v1::JOB_STATE_SUCCEEDED);
  EXPECT_EQ(Take(watch.get(), &update), Got::kEnd);
}

TEST(JobWatch, ResumesAfterARevision) {
  JobBoard board;
  board.Publish(MakeJob(7));
  v1::WatchJobResponse update;
  EXPECT_EQ(Take(board.Watch("j", 7).get(), &update), Got::kNothingYet);
  EXPECT_EQ(Take(board.Watch("j", 6).get(), &update), Got::kUpdate);
}

TEST(JobWatch, SlowWatcherLosesStepsButNotTheNewestChange) {
  JobBoard board;
  board.Publish(MakeJob(1));
  const auto watch = board.Watch("j", 0);
  for (int step = 1; step <= 1000; ++step) board.PublishStep(MakeJob(1, v1::JOB_STATE_RUNNING, step));
  board.Publish(MakeJob(2, v1::JOB_STATE_FAILED));
  size_t updates = 0;
  int64_t last_step = 0, last_revision = 0;
  v1::WatchJobResponse update;
  while (Take(watch.get(), &update) == Got::kUpdate) {
    ++updates;
    if (update.has_job()) last_revision = update.job().revision();
    if (update.has_step()) {
      EXPECT_GT(update.step().step(), last_step);
      last_step = update.step().step();
    }
  }
  EXPECT_EQ(updates, kMaxWatchUpdates);
  EXPECT_EQ(last_step, 1000);
  EXPECT_EQ(last_revision, 2);
}

TEST(JobBoard, WatchFromBeforeARestoreStartsWithTheCurrentJob) {
  JobBoard board;
  board.Publish(MakeJob(4));
  v1::WatchJobResponse update;
  const auto watch = board.Watch("j", 30);
  ASSERT_EQ(Take(watch.get(), &update), Got::kUpdate);
  EXPECT_EQ(update.job().revision(), 4);
}

TEST(JobBoard, EndedJobLeavesTheBoard) {
  JobBoard board;
  board.Publish(MakeJob(1));
  EXPECT_TRUE(board.Get("j").has_value());
  board.Publish(MakeJob(2, v1::JOB_STATE_CANCELLED));
  EXPECT_FALSE(board.Get("j").has_value());
  EXPECT_EQ(board.Watch("j", 0), nullptr);
}

TEST(JobBoard, CloseEndsWatchesNowAndLater) {
  JobBoard board;
  board.Publish(MakeJob(1));
  const auto before = board.Watch("j", 1);
  board.Close();
  const auto after = board.Watch("j", 1);
  v1::WatchJobResponse update;
  EXPECT_EQ(before->Next(absl::InfiniteDuration(), &update), Got::kEnd);
  EXPECT_EQ(Take(after.get(), &update), Got::kEnd);
}

TEST(JobBoard, NewWaitingJobHasAReasonImmediately) {
  JobBoard board;
  board.SetWaiting({{"known", v1::Job::Waiting()}});
  const auto code_of = [&](const char* id, v1::JobState state) {
    v1::Job job;
    job.set_id(id);
    job.set_state(state);
    board.AddWaiting(&job);
    return job.has_waiting() ? job.waiting().code() : -1;
  };
  EXPECT_EQ(code_of("known", v1::JOB_STATE_QUEUED), v1::Job::Waiting::CODE_UNSPECIFIED);
  EXPECT_EQ(code_of("new", v1::JOB_STATE_QUEUED), v1::Job::Waiting::CODE_ADMITTED);
  EXPECT_EQ(code_of("held", v1::JOB_STATE_PAUSED), v1::Job::Waiting::CODE_PAUSED);
  EXPECT_EQ(code_of("known", v1::JOB_STATE_RUNNING), -1);
}

// For a job that was not published as a whole since.
TEST(JobWatch, ReadersSeeChangesOfStepsAndSlowRanks) {
  JobBoard board;
  v1::Job job = MakeJob(3);
  job.mutable_spec()->set_name("named");
  job.set_skipped_through(9);
  job.mutable_ledger()->set_until_unix_nanos(1);
  job.mutable_ledger()->set_cause(v1::Job::Ledger::CAUSE_OTHER);
  board.Publish(job);
  for (int step = 1; step <= 3; ++step) {
    v1::StepReport report;
    report.set_step(step);
    report.set_loss(1.5 + step);
    report.set_step_seconds(0.25);
    report.mutable_memory()->set_peak_bytes(100 + step);
    report.mutable_memory()->set_device_mallocs(10 * step);
    const v1::StepReport before = job.last_step();
    ASSERT_TRUE(TakeStep(report, &job));
    MoveStep(before, report, absl::FromUnixSeconds(step), &job);
    TakeCounted(report, &job);
    board.PublishStep(job);
    EXPECT_EQ(board.Get("j")->SerializeAsString(), job.SerializeAsString());
  }
  job.add_slowest_ranks()->set_rank(4);
  board.Move(job);
  EXPECT_EQ(board.Live().at(0)->SerializeAsString(), job.SerializeAsString());
  job.clear_slowest_ranks();
  board.Move(job);
  v1::WatchJobResponse update;
  ASSERT_EQ(Take(board.Watch("j", 0).get(), &update), Got::kUpdate);
  EXPECT_EQ(update.job().SerializeAsString(), job.SerializeAsString());
}

// The job published since is newer.
TEST(JobWatch, StepBeforeAChangeIsNotAppliedAfterIt) {
  JobBoard board;
  board.Publish(MakeJob(1));
  board.PublishStep(MakeJob(1, v1::JOB_STATE_RUNNING, 5));
  board.Publish(MakeJob(2));
  EXPECT_FALSE(board.Get("j")->has_last_step());
  board.PublishStep(MakeJob(2, v1::JOB_STATE_RUNNING, 6));
  board.Replace(MakeJob(2));
  EXPECT_FALSE(board.Get("j")->has_last_step());
}

}  // namespace
}  // namespace fsdpd
