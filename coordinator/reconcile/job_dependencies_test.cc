#include "coordinator/reconcile/job_dependencies.h"

#include "coordinator/testing/full_disk.h"
#include "coordinator/testing/reconcile_parts.h"

namespace fsdpd {
namespace {

using ::testing::HasSubstr;

class JobDependenciesTest : public ReconcileParts {
 protected:
  LiveJob* SubmitAfter(const std::string& id, const std::string& other) {
    v1::Job job = QueuedJob(id);
    job.add_after()->set_job(other);
    return Submit(job);
  }
  // In the store only, as after its end.
  v1::Job Ended(const std::string& id, v1::JobState state) {
    v1::Job job = QueuedJob(id);
    job.set_state(state);
    EXPECT_TRUE(store_->Insert(job).ok());
    return job;
  }

  JobDependencies dependencies_{&table_, store_.get()};
};

TEST_F(JobDependenciesTest, WaitingJobRecordsSuccessOnce) {
  Ended("first", v1::JOB_STATE_SUCCEEDED);
  SubmitAfter("second", "first");
  EXPECT_TRUE(dependencies_.Advance());
  EXPECT_TRUE(Stored("second").after(0).succeeded());
  EXPECT_EQ(Stored("second").reason(), "all jobs that it waited for have succeeded");
  const int64_t revision = Stored("second").revision();
  EXPECT_TRUE(dependencies_.Advance());
  EXPECT_EQ(Stored("second").revision(), revision);
}

TEST_F(JobDependenciesTest, WaitsForRunningAndFailedJobs) {
  Submit(QueuedJob("runs"));
  Ended("failed", v1::JOB_STATE_FAILED);
  LiveJob* const after_running = SubmitAfter("a", "runs");
  LiveJob* const after_failed = SubmitAfter("b", "failed");
  EXPECT_TRUE(dependencies_.Advance());
  for (const LiveJob* live : {after_running, after_failed}) {
    EXPECT_EQ(live->job.state(), v1::JOB_STATE_QUEUED);
    EXPECT_FALSE(live->job.after(0).succeeded());
  }
}

TEST_F(JobDependenciesTest, JobWhoseDependencyIsGoneEnds) {
  SubmitAfter("second", "never existed");
  EXPECT_TRUE(dependencies_.Advance());
  EXPECT_EQ(Stored("second").state(), v1::JOB_STATE_FAILED);
  EXPECT_THAT(Stored("second").reason(), HasSubstr("never existed, which was deleted without success"));
  EXPECT_EQ(table_.Find("second"), nullptr);
}

TEST_F(JobDependenciesTest, PausedJobRecordsSuccessAndKeepsItsReason) {
  Ended("first", v1::JOB_STATE_SUCCEEDED);
  v1::Job paused = QueuedJob("second");
  paused.add_after()->set_job("first");
  paused.set_state(v1::JOB_STATE_PAUSED);
  paused.set_reason("paused by ada");
  Submit(paused);
  EXPECT_TRUE(dependencies_.Advance());
  EXPECT_TRUE(Stored("second").after(0).succeeded());
  EXPECT_EQ(Stored("second").reason(), "paused by ada");
}

TEST_F(JobDependenciesTest, ManyJobsAreRecordedOverSeveralTicks) {
  Ended("first", v1::JOB_STATE_SUCCEEDED);
  for (int i = 0; i < 20; ++i) SubmitAfter(absl::StrCat("job-", i), "first");
  EXPECT_FALSE(dependencies_.Advance());
  EXPECT_TRUE(dependencies_.Advance());
}

TEST_F(JobDependenciesTest, FullDiskLeavesTheRestToTheNextTick) {
  Ended("first", v1::JOB_STATE_SUCCEEDED);
  SubmitAfter("second", "first");
  {
    const FullDisk full;
    EXPECT_FALSE(dependencies_.Advance());
  }
  EXPECT_TRUE(dependencies_.Advance());
  EXPECT_TRUE(Stored("second").after(0).succeeded());
}

TEST_F(JobDependenciesTest, DeletionRecordsSuccess) {
  const v1::Job first = Ended("first", v1::JOB_STATE_SUCCEEDED);
  SubmitAfter("second", "first");
  EXPECT_TRUE(dependencies_.Release(first).ok());
  EXPECT_TRUE(Stored("second").after(0).succeeded());
}

TEST_F(JobDependenciesTest, UnsuccessfulJobIsNotDeletedWhileOthersWait) {
  const v1::Job failed = Ended("first", v1::JOB_STATE_FAILED);
  SubmitAfter("second", "first");
  EXPECT_THAT(dependencies_.Release(failed).message(), HasSubstr("job second waits for its success"));
  EXPECT_TRUE(dependencies_.Release(Ended("other", v1::JOB_STATE_FAILED)).ok());
}

}  // namespace
}  // namespace fsdpd
