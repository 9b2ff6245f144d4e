// Tests of wait: exit code, stdout and stderr.
#include <absl/time/clock.h>
#include <gtest/gtest.h>

#include <atomic>

#include "client/connect/outcome.h"
#include "client/testing/listed_jobs_case.h"

namespace fsdpd {
namespace {

class WaitCommandTest : public ListedJobsCase {
 protected:
  // A watch of it: running, step 20 of 30, then succeeded.
  void ServeWatch() {
    server_.on_watch = [](const v1::WatchJobRequest&, grpc::ServerContext*,
                          grpc::ServerWriter<v1::WatchJobResponse>* writer) {
      v1::WatchJobResponse update;
      v1::Job* job = update.mutable_job();
      job->set_id("tiny-b2");
      job->set_revision(1);
      job->set_state(v1::JOB_STATE_RUNNING);
      job->mutable_spec()->mutable_train()->set_steps(30);
      const v1::Job running = *job;
      writer->Write(update);
      update.mutable_step()->set_step(20);
      writer->Write(update);
      *update.mutable_job() = running;
      update.mutable_job()->set_revision(2);
      update.mutable_job()->set_state(v1::JOB_STATE_SUCCEEDED);
      update.mutable_job()->set_reason("all ranks finished");
      writer->Write(update);
      return grpc::Status::OK;
    };
  }
};

TEST_F(WaitCommandTest, WaitReturnsWhenConditionIsMet) {
  ServeWatch();
  EXPECT_EQ(Run({"wait", "tiny-b2", "--for", "state=running"}), kExitOk) << err_;
  EXPECT_EQ(out_, "tiny-b2 running\n");
  EXPECT_EQ(Run({"wait", "tiny-b2", "--for", "step=20"}), kExitOk) << err_;
  EXPECT_EQ(out_, "tiny-b2 running at step 20\n");
  EXPECT_EQ(Run({"wait", "tiny-b2", "--for", "ended"}), kExitOk) << err_;
  EXPECT_EQ(Run({"wait", "tiny-b2", "--for", "state=succeeded", "-o", "json"}), kExitOk) << err_;
  EXPECT_EQ(out_.find("{\n  \"id\": \"tiny-b2\""), 0u) << out_;
}

TEST_F(WaitCommandTest, WaitExitsWith1WhenConditionIsImpossible) {
  ServeWatch();
  EXPECT_EQ(Run({"wait", "tiny-b2", "--for", "state=failed"}), kExitJobFailed);
  EXPECT_NE(err_.find("tiny-b2 can no longer reach state=failed: it is succeeded: all ranks finished"),
            std::string::npos)
      << err_;
  EXPECT_EQ(Run({"wait", "tiny-b2", "--for", "step=31"}), kExitJobFailed);
  EXPECT_NE(err_.find("it has 30 steps"), std::string::npos) << err_;
}

TEST_F(WaitCommandTest, WaitExitsWith6AfterTimeout) {
  server_.on_watch = [](const v1::WatchJobRequest&, grpc::ServerContext* context,
                        grpc::ServerWriter<v1::WatchJobResponse>* writer) {
    v1::WatchJobResponse update;
    update.mutable_job()->set_id("tiny-b2");
    update.mutable_job()->set_revision(1);
    update.mutable_job()->set_state(v1::JOB_STATE_QUEUED);
    writer->Write(update);
    while (!context->IsCancelled()) absl::SleepFor(absl::Milliseconds(5));
    return grpc::Status::OK;
  };
  EXPECT_EQ(Run({"wait", "tiny-b2", "big-c3", "--for", "ended", "--timeout", "0.5"}), kExitTimeout);
  EXPECT_NE(err_.find("tiny-b2 did not reach ended within --timeout; it is queued"), std::string::npos)
      << err_;
}

TEST_F(WaitCommandTest, WaitRejectsTooManyJobs) {
  std::vector<std::string> arguments(65, "tiny-b2");
  arguments.insert(arguments.begin(), "wait");
  EXPECT_EQ(Run(arguments), kExitUsage);
  EXPECT_NE(err_.find("too many jobs (got 65, at most 64)"), std::string::npos) << err_;
}

TEST_F(WaitCommandTest, MissingJobIsDeleted) {
  EXPECT_EQ(Run({"wait", "gone-1", "--for", "deleted"}), kExitOk) << err_;
  EXPECT_EQ(out_, "gone-1 deleted\n");
  EXPECT_EQ(Run({"wait", "tiny-b2", "--for", "deleted", "--timeout", "0.2"}), kExitTimeout);
}

TEST_F(WaitCommandTest, WaitForDeletionSurvivesFailedCall) {
  std::atomic<int> calls{0};
  server_.on_get = [&](const v1::GetJobRequest& request, v1::GetJobResponse* response) {
    response->mutable_job()->set_id(request.id());
    const int call = ++calls;
    if (call < 2) return grpc::Status::OK;
    return call < 4 ? grpc::Status(grpc::StatusCode::DEADLINE_EXCEEDED, "no answer")
                    : grpc::Status(grpc::StatusCode::NOT_FOUND, "no such job");
  };
  server_.on_list = [](const auto&, v1::ListJobsResponse*) { return grpc::Status::OK; };
  EXPECT_EQ(Run({"wait", "j", "--for", "deleted"}), kExitOk) << err_;
  EXPECT_EQ(out_, "j deleted\n");
  EXPECT_GE(calls, 4);
  server_.Stop();  // Before `calls` is destroyed.
}

}  // namespace
}  // namespace fsdpd
