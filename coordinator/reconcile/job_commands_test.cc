#include "coordinator/reconcile/job_commands.h"

#include "coordinator/request/job_etag.h"
#include "coordinator/testing/full_disk.h"
#include "coordinator/testing/reconcile_parts.h"

namespace fsdpd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

class JobCommandsTest : public ReconcileParts {
 protected:
  void SetUp() override { Attach("a"); }
  absl::StatusOr<v1::Job> Cancel(int64_t grace_ms) { return commands_.Cancel("j", "", grace_ms); }
  absl::StatusOr<v1::Job> Pause(int64_t grace_ms = 60'000) { return commands_.Pause("j", "", grace_ms); }
  v1::Job::Pause Automatic(const std::string& preempted_by) {
    v1::Job::Pause pause;
    pause.set_resumes_automatically(true);
    pause.set_preempted_by(preempted_by);
    return pause;
  }
  // Ended, and only in the store.
  v1::Job AddEnded(v1::Job job, v1::JobState state) {
    job.set_state(state);
    job.set_end_unix_nanos(absl::ToUnixNanos(clock_.Wall()));
    EXPECT_TRUE(store_->Insert(job).ok());
    return job;
  }

  JobDependencies dependencies_{&table_, store_.get()};
  EndedJobs ended_{Retention(), {&table_, &presence_, &nodes_, store_.get(), &clock_}};
  JobCommands commands_{
      {&table_, &presence_, &book_, &dependencies_, &records_, &ended_, store_.get(), &clock_}};
};

TEST_F(JobCommandsTest, EtagOfAnEarlierRevisionIsAborted) {
  LiveJob* live = Submit(QueuedJob("j"));
  const std::string etag = EtagOf(live->job);
  EXPECT_TRUE(commands_.CheckEtag("j", etag).ok());
  EXPECT_TRUE(commands_.CheckEtag("j", "").ok());
  EXPECT_TRUE(absl::IsNotFound(commands_.CheckEtag("k", etag)));
  ASSERT_TRUE(table_.Commit(live, JobEvent::kNote, "waits").ok());
  EXPECT_TRUE(absl::IsAborted(commands_.CheckEtag("j", etag)));
}

TEST_F(JobCommandsTest, OnlyACancelOfRanksTakesEffectUnstored) {
  Submit(QueuedJob("j"));
  Run(QueuedJob("runs"), "a");
  const FullDisk full;
  EXPECT_FALSE(Cancel(1000).ok());
  EXPECT_EQ(table_.At("j").job.state(), v1::JOB_STATE_QUEUED);
  EXPECT_TRUE(commands_.Cancel("runs", "", 1000).ok());
  EXPECT_THAT(StopsTo("a"), SizeIs(1));
}

TEST_F(JobCommandsTest, CancelOfAQueuedJobEndsIt) {
  Submit(QueuedJob("j"));
  EXPECT_EQ(Cancel(1000)->state(), v1::JOB_STATE_CANCELLED);
  EXPECT_TRUE(table_.HasEnded("j"));
}

TEST_F(JobCommandsTest, SecondCancelShortensTheGraceOnly) {
  Run(QueuedJob("j"), "a");
  ASSERT_TRUE(Cancel(60'000).ok());
  ASSERT_TRUE(Cancel(90'000).ok());
  std::vector<v1::Stop> stops = StopsTo("a");
  ASSERT_THAT(stops, SizeIs(1));
  EXPECT_TRUE(stops[0].save());
  ASSERT_TRUE(Cancel(0).ok());
  stops = StopsTo("a");
  ASSERT_THAT(stops, SizeIs(1));
  EXPECT_EQ(stops[0].grace_ms(), 1);
  EXPECT_FALSE(stops[0].save());
}

TEST_F(JobCommandsTest, JobWithoutCheckpointsCannotBePausedWhileItTrains) {
  v1::Job job = QueuedJob("j");
  job.mutable_spec()->clear_checkpoint();
  LiveJob* live = Run(job, "a");
  const absl::StatusOr<v1::Job> refused = Pause();
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(refused.status().message(), HasSubstr("writes no checkpoints"));
  EXPECT_EQ(live->job.state(), v1::JOB_STATE_RUNNING);
  Fail(live);
  EXPECT_EQ(Pause()->state(), v1::JOB_STATE_PAUSED) << "no ranks";
}

TEST_F(JobCommandsTest, UsersPauseOfAPreemptedJobHoldsIt) {
  LiveJob* live = Run(QueuedJob("j"), "a");
  ASSERT_TRUE(table_
                  .Commit(live, JobEvent::kPause, "preempted",
                          [this](v1::Job* job) { *job->mutable_pause() = Automatic("k"); })
                  .ok());
  ASSERT_TRUE(Pause().ok());
  EXPECT_FALSE(Stored("j").pause().resumes_automatically());
  ASSERT_TRUE(table_.Commit(live, JobEvent::kRanksGone, "gone").ok());
  commands_.ResumeAutomatically();
  EXPECT_EQ(live->job.state(), v1::JOB_STATE_PAUSED);
  ASSERT_TRUE(commands_.Resume("j", "").ok());
  EXPECT_EQ(live->job.state(), v1::JOB_STATE_QUEUED);
}

TEST_F(JobCommandsTest, ResumeWhileRanksLeaveTakesEffectAfterwards) {
  LiveJob* live = Run(QueuedJob("j"), "a");
  ASSERT_TRUE(Pause().ok());
  EXPECT_EQ(commands_.Resume("j", "")->state(), v1::JOB_STATE_PAUSING);
  ASSERT_TRUE(table_.Commit(live, JobEvent::kRanksGone, "gone").ok());
  commands_.ResumeAutomatically();
  EXPECT_EQ(live->job.state(), v1::JOB_STATE_QUEUED);
}

TEST_F(JobCommandsTest, RetriedJobCountsItsAttemptsAnew) {
  v1::Job failed = QueuedJob("j");
  failed.set_attempt(3);
  failed.set_rewinds(2);
  failed.add_deleted_hosts("a");
  failed.add_deleted_hosts("b");
  AddEnded(failed, v1::JOB_STATE_FAILED);
  const absl::StatusOr<v1::Job> retried = commands_.Retry("j", "");
  ASSERT_TRUE(retried.ok()) << retried.status();
  EXPECT_EQ(retried->state(), v1::JOB_STATE_QUEUED);
  EXPECT_EQ(retried->uncounted_attempt(), 3);
  EXPECT_EQ(retried->rewinds(), 0);
  EXPECT_THAT(retried->deleted_hosts(), ElementsAre("b")) << "a is back";
}

TEST_F(JobCommandsTest, RetryThatIsRefusedLeavesTheJobEnded) {
  AddEnded(QueuedJob("done"), v1::JOB_STATE_SUCCEEDED);
  EXPECT_EQ(commands_.Retry("done", "").status().code(), absl::StatusCode::kFailedPrecondition);
  AddEnded(QueuedJob("j"), v1::JOB_STATE_FAILED);
  v1::Job other = QueuedJob("k");
  other.mutable_spec()->mutable_checkpoint()->set_dir("/runs/j");
  Submit(other);
  EXPECT_EQ(commands_.Retry("j", "").status().code(), absl::StatusCode::kFailedPrecondition)
      << "its directory is in use";
  EXPECT_TRUE(table_.HasEnded("j"));
  AddEnded(QueuedJob("l"), v1::JOB_STATE_FAILED);
  const FullDisk full;
  EXPECT_FALSE(commands_.Retry("l", "").ok());
  EXPECT_TRUE(table_.HasEnded("l"));
}

TEST_F(JobCommandsTest, DeletesEndedJobsOnly) {
  std::vector<std::string> nodes;
  Submit(QueuedJob("j"));
  EXPECT_EQ(commands_.Delete("j", &nodes).status().code(), absl::StatusCode::kFailedPrecondition);
  AddEnded(QueuedJob("old"), v1::JOB_STATE_FAILED);
  nodes_.Detach("a", outboxes_.at("a")->stream_generation());
  nodes_.AddUnconfirmed("a", "old", [](const std::string&) { return false; });
  presence_.Read();
  EXPECT_EQ(commands_.Delete("old", &nodes)->id(), "old");
  EXPECT_THAT(nodes, ElementsAre("a"));
  EXPECT_TRUE(absl::IsNotFound(store_->Get("old").status()));
}

}  // namespace
}  // namespace fsdpd
