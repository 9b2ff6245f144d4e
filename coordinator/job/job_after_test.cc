#include "coordinator/job/job_after.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

namespace fsdpd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class JobAfterTest : public ::testing::Test {
 protected:
  void SetUp() override {
    job_.set_id("c");
    for (const char* id : {"a", "b"}) job_.add_after()->set_job(id);
  }
  DependencyChanges Look() { return CheckDependencies(job_, state_of_); }

  v1::Job job_;
  std::map<std::string, v1::JobState> states_ = {{"a", v1::JOB_STATE_RUNNING}, {"b", v1::JOB_STATE_QUEUED}};
  const StateOfJob state_of_ = [this](const std::string& id) {
    const auto it = states_.find(id);
    return it == states_.end() ? v1::JOB_STATE_UNSPECIFIED : it->second;
  };
};

TEST_F(JobAfterTest, WaitsUntilAllHaveSucceeded) {
  EXPECT_EQ(AfterReason(job_, state_of_), "waits for the success of a, b");
  EXPECT_THAT(Look().succeeded, ElementsAre());
  states_["a"] = v1::JOB_STATE_SUCCEEDED;
  EXPECT_THAT(Look().succeeded, ElementsAre("a"));
  RecordSucceeded(Look(), &job_);
  EXPECT_TRUE(WaitsForJobs(job_));
  EXPECT_FALSE(WaitsForJob(job_, "a"));
  EXPECT_EQ(AfterReason(job_, state_of_), "waits for the success of b");
  states_["b"] = v1::JOB_STATE_SUCCEEDED;
  RecordSucceeded(Look(), &job_);
  EXPECT_FALSE(WaitsForJobs(job_));
}

// The job waited without a reason for a dependency that only a user could resume.
TEST_F(JobAfterTest, ReportsPausedDependencies) {
  states_["b"] = v1::JOB_STATE_PAUSED;
  EXPECT_EQ(AfterReason(job_, state_of_),
            "waits for the success of a, b; b is paused: `fsdpctl resume b` resumes it");
  EXPECT_EQ(WaitingForJobs(job_, state_of_).remedy(),
            "the success of a, b; b is paused: `fsdpctl resume b` resumes it");
  states_["a"] = v1::JOB_STATE_PAUSED;
  EXPECT_THAT(AfterReason(job_, state_of_), HasSubstr("; a, b are paused: `fsdpctl resume a` resumes it"));
}

TEST_F(JobAfterTest, DeletedSuccessStillCounts) {
  states_["a"] = v1::JOB_STATE_SUCCEEDED;
  RecordSucceeded(Look(), &job_);
  states_.erase("a");
  EXPECT_EQ(Look().gone, "");
  states_.erase("b");
  EXPECT_EQ(Look().gone, "b") << "it can no longer be retried";
}

TEST_F(JobAfterTest, FailedDependencyMayBeRetried) {
  states_["a"] = v1::JOB_STATE_FAILED;
  EXPECT_EQ(Look().gone, "");
  EXPECT_EQ(
      AfterReason(job_, state_of_),
      "job a has failed, and this job waits for its success: retry it (`fsdpctl retry a`), or cancel this "
      "job (`fsdpctl cancel c`)");
  v1::Job::Waiting waiting = WaitingForJobs(job_, state_of_);
  EXPECT_EQ(waiting.code(), v1::Job::Waiting::CODE_AFTER_FAILED);
  EXPECT_THAT(waiting.jobs(), ElementsAre("a"));
  states_["b"] = v1::JOB_STATE_CANCELLED;
  EXPECT_THAT(AfterReason(job_, state_of_), HasSubstr("job a has failed, job b was cancelled, and this job"));
  states_["a"] = states_["b"] = v1::JOB_STATE_QUEUED;  // Both were retried.
  waiting = WaitingForJobs(job_, state_of_);
  EXPECT_EQ(waiting.code(), v1::Job::Waiting::CODE_AFTER);
  EXPECT_THAT(waiting.jobs(), ElementsAre("a", "b"));
}

}  // namespace
}  // namespace fsdpd
