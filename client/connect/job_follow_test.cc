#include "client/connect/job_follow.h"

#include <absl/strings/str_cat.h>
#include <gtest/gtest.h>

#include <thread>

#include "base/mutex.h"
#include "client/testing/scripted_api.h"

namespace fsdpd {
namespace {

v1::WatchJobResponse JobUpdate(int64_t revision, v1::JobState state, int attempt = 1) {
  v1::WatchJobResponse update;
  update.mutable_job()->set_id("j");
  update.mutable_job()->set_revision(revision);
  update.mutable_job()->set_state(state);
  update.mutable_job()->set_attempt(attempt);
  return update;
}

v1::WatchJobResponse StepUpdate(int64_t step) {
  v1::WatchJobResponse update;
  update.mutable_step()->set_step(step);
  return update;
}

// Records the callbacks: "r1 s1 s2 lost back r4".
class Diary : public JobObserver {
 public:
  void OnJob(const v1::Job& job) override { absl::StrAppend(&text, "r", job.revision(), " "); }
  void OnStep(const v1::StepReport& report) override { absl::StrAppend(&text, "s", report.step(), " "); }
  void OnConnectionLost(const absl::Status&) override {
    text += "lost ";
    if (on_lost) on_lost();
  }
  void OnConnectionBack() override { text += "back "; }

  std::string text;
  std::function<void()> on_lost;
};

class JobFollowTest : public testing::Test {
 protected:
  // The n-th watch gets the n-th script; then its stream ends with `ending`.
  void Script(std::vector<std::vector<v1::WatchJobResponse>> scripts,
              grpc::Status ending = grpc::Status::OK) {
    server_.on_watch = [this, scripts, ending](const v1::WatchJobRequest& request, grpc::ServerContext*,
                                               grpc::ServerWriter<v1::WatchJobResponse>* writer) {
      size_t n = 0;
      {
        MutexLock lock(&mutex_);
        n = revisions_.size();
        revisions_.push_back(request.after_revision());
      }
      if (n >= scripts.size()) return ending;
      for (const auto& update : scripts[n]) writer->Write(update);
      return n + 1 < scripts.size() ? grpc::Status(grpc::StatusCode::UNAVAILABLE, "stopping") : ending;
    };
  }

  absl::StatusOr<v1::Job> Follow(absl::Duration reconnect_for = absl::Seconds(30)) {
    CoordinatorClient client(server_.address(), {});
    return FollowJob(&client, "j", {reconnect_for, absl::Milliseconds(10)}, &interrupt_, &diary_);
  }

  void SetUp() override { server_.Start(); }

  Interrupt interrupt_;
  Diary diary_;
  Mutex mutex_;
  std::vector<int64_t> revisions_ ABSL_GUARDED_BY(mutex_);  // Requested, one per watch.
  ScriptedApi server_;  // Last: stops before its hooks' data is destroyed.
};

TEST_F(JobFollowTest, ReturnsEndedJob) {
  Script({{JobUpdate(1, v1::JOB_STATE_RUNNING), StepUpdate(1), StepUpdate(2),
           JobUpdate(2, v1::JOB_STATE_FAILED)}});
  const auto job = Follow();
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->state(), v1::JOB_STATE_FAILED);
  EXPECT_EQ(diary_.text, "r1 s1 s2 r2 ");
}

TEST_F(JobFollowTest, ResumesByRevisionWithoutDuplicateSteps) {
  Script({{JobUpdate(3, v1::JOB_STATE_RUNNING), StepUpdate(1), StepUpdate(2)},
          {StepUpdate(2), StepUpdate(3)},
          {JobUpdate(3, v1::JOB_STATE_RUNNING), JobUpdate(4, v1::JOB_STATE_SUCCEEDED)}});
  ASSERT_TRUE(Follow().ok());
  EXPECT_EQ(diary_.text, "r3 s1 s2 lost back s3 lost back r4 ");
  MutexLock lock(&mutex_);
  EXPECT_EQ(revisions_, (std::vector<int64_t>{0, 3, 3}));
}

TEST_F(JobFollowTest, ReportsStepsOfNewAttempt) {
  Script({{JobUpdate(1, v1::JOB_STATE_RUNNING, 1), StepUpdate(7), JobUpdate(2, v1::JOB_STATE_RUNNING, 2),
           StepUpdate(1), JobUpdate(3, v1::JOB_STATE_SUCCEEDED, 2)}});
  ASSERT_TRUE(Follow().ok());
  EXPECT_EQ(diary_.text, "r1 s7 r2 s1 r3 ");
}

TEST_F(JobFollowTest, SurvivesCoordinatorRestart) {
  Script({{JobUpdate(1, v1::JOB_STATE_RUNNING)}, {JobUpdate(2, v1::JOB_STATE_SUCCEEDED)}});
  diary_.on_lost = [&] {
    server_.Stop();
    server_.Start();
  };
  ASSERT_TRUE(Follow().ok());
  EXPECT_EQ(diary_.text, "r1 lost back r2 ");
}

TEST_F(JobFollowTest, StopsWhenCoordinatorStaysUnreachable) {
  Script({{JobUpdate(1, v1::JOB_STATE_RUNNING)}});
  diary_.on_lost = [&] { server_.Stop(); };
  const absl::Status status = Follow(absl::Milliseconds(200)).status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_EQ(diary_.text, "r1 lost ");
}

TEST_F(JobFollowTest, DoesNotRetryRejectedCall) {
  Script({}, RefusalWithDetails(grpc::StatusCode::NOT_FOUND, "no job 'j'", "JOB_NOT_FOUND"));
  EXPECT_TRUE(absl::IsNotFound(Follow().status()));
  MutexLock lock(&mutex_);
  EXPECT_EQ(revisions_.size(), 1u);
}

// Regression: `until` was asked about an empty job, which FollowJob then returned.
TEST_F(JobFollowTest, ReturnsErrorIfNoJobArrived) {
  Script({}, RefusalWithDetails(grpc::StatusCode::NOT_FOUND, "no job 'j'", "JOB_NOT_FOUND"));
  CoordinatorClient client(server_.address(), {});
  FollowOptions options;
  options.until = [](const v1::Job& job) { return job.state() != v1::JOB_STATE_PAUSING; };
  EXPECT_TRUE(absl::IsNotFound(FollowJob(&client, "j", options, &interrupt_, &diary_).status()));
  interrupt_.Fire();
  EXPECT_TRUE(absl::IsCancelled(FollowJob(&client, "j", options, &interrupt_, &diary_).status()));
}

TEST_F(JobFollowTest, InterruptEndsReconnectWait) {
  Script({{JobUpdate(1, v1::JOB_STATE_RUNNING)}});
  diary_.on_lost = [&] { interrupt_.Fire(); };
  EXPECT_TRUE(absl::IsCancelled(Follow().status()));
}

}  // namespace
}  // namespace fsdpd
