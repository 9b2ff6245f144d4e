// Tests of logs: exit code, stdout and stderr.
#include <absl/strings/str_cat.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>

#include "client/connect/outcome.h"
#include "client/testing/command_case.h"

namespace fsdpd {
namespace {

using LogsCommandTest = ServedCommandCase;

// Regression: an unreachable node was reported as an unreachable coordinator.
TEST_F(LogsCommandTest, LogsReportUnreachableNode) {
  server_.on_get = [](const auto&, auto*) { return grpc::Status::OK; };
  server_.on_logs = [](const auto&, auto*, auto*) {
    return RefusalWithDetails(grpc::StatusCode::UNAVAILABLE, "the agent of node b is not connected",
                              "UNAVAILABLE");
  };
  EXPECT_EQ(Run({"logs", "j"}), kExitUnavailable);
  EXPECT_EQ(err_, "fsdpctl: the agent of node b is not connected [UNAVAILABLE]\n");
}

TEST_F(LogsCommandTest, UnknownAttemptExitsWith4) {
  server_.on_get = [](const auto&, auto*) { return grpc::Status::OK; };
  server_.on_logs = [](const auto&, auto*, auto*) {
    return RefusalWithDetails(grpc::StatusCode::NOT_FOUND, "job j has attempts 1..1", "ATTEMPT_NOT_FOUND");
  };
  EXPECT_EQ(Run({"logs", "j", "--attempt", "7"}), kExitNotFound);
  EXPECT_EQ(err_, "fsdpctl: job j has attempts 1..1 [ATTEMPT_NOT_FOUND]\n");
}

TEST_F(LogsCommandTest, LogsPrefixRankOnlyIfSeveral) {
  const auto nodes = std::make_shared<std::atomic<int64_t>>(2);
  server_.on_get = [nodes](const auto&, v1::GetJobResponse* response) {
    response->mutable_job()->mutable_spec()->mutable_resources()->set_nodes(*nodes);
    return grpc::Status::OK;
  };
  server_.on_logs = [](const v1::TailLogsRequest& request, grpc::ServerContext*,
                       grpc::ServerWriter<v1::TailLogsResponse>* writer) {
    v1::TailLogsResponse line;
    line.set_rank(1);
    line.set_line(absl::StrCat("tail ", request.tail_lines()));
    writer->Write(line);
    return grpc::Status::OK;
  };
  EXPECT_EQ(Run({"logs", "j", "--tail", "5"}), 0);
  EXPECT_EQ(out_, "[rank 1] tail 5\n");
  EXPECT_EQ(Run({"logs", "j", "--rank", "1"}), 0);
  EXPECT_EQ(out_, "tail 0\n");
  *nodes = 1;
  EXPECT_EQ(Run({"logs", "j"}), 0);
  EXPECT_EQ(out_, "tail 0\n");
  EXPECT_EQ(Run({"logs", "j", "-o", "yaml"}), 0);
  EXPECT_EQ(out_, "---\nrank: 1\nattempt: 0\nline: \"tail 0\"\nnotice: false\nevidence: false\n")
      << "one document per line";
}

TEST_F(LogsCommandTest, LogsOfPreviousAttempt) {
  server_.on_get = [](const auto&, v1::GetJobResponse* response) {
    response->mutable_job()->set_id("j");
    response->mutable_job()->set_attempt(3);
    return grpc::Status::OK;
  };
  server_.on_logs = [](const v1::TailLogsRequest& request, grpc::ServerContext*,
                       grpc::ServerWriter<v1::TailLogsResponse>* writer) {
    v1::TailLogsResponse log;
    log.set_line(absl::StrCat("attempt ", request.attempt()));
    writer->Write(log);
    log.set_line("other");
    writer->Write(log);
    return grpc::Status::OK;
  };
  EXPECT_EQ(Run({"logs", "j", "--previous", "--grep", "^attempt"}), kExitOk) << err_;
  EXPECT_EQ(out_, "attempt 2\n");
  EXPECT_EQ(Run({"logs", "j", "-p", "--attempt", "1"}), kExitUsage);
  server_.on_get = [](const auto&, v1::GetJobResponse* response) {
    response->mutable_job()->set_id("j");
    response->mutable_job()->set_attempt(1);
    return grpc::Status::OK;
  };
  EXPECT_EQ(Run({"logs", "j", "--previous"}), kExitNotFound);
}

// Regression: the coordinator's error named the API field `tail_lines` instead of the flag.
TEST_F(LogsCommandTest, RejectsInvalidTail) {
  for (const char* lines : {"0", "-1", "100001", "ten"}) {
    EXPECT_EQ(Run({"logs", "j", absl::StrCat("--tail=", lines)}), kExitUsage) << lines;
    EXPECT_EQ(
        err_,
        absl::StrCat(
            "fsdpctl: --tail: '", lines,
            "' is not an integer from 1 to 100000 [INVALID_FLAG]\nrun `fsdpctl logs --help` for usage\n"));
  }
}

TEST_F(LogsCommandTest, LogsEvidenceRejectsOldCoordinator) {
  const auto knows = std::make_shared<std::atomic<bool>>(true);
  server_.on_get = [](const auto&, v1::GetJobResponse* response) {
    response->mutable_job()->set_id("j");
    return grpc::Status::OK;
  };
  server_.on_logs = [knows](const v1::TailLogsRequest& request, grpc::ServerContext*,
                            grpc::ServerWriter<v1::TailLogsResponse>* writer) {
    v1::TailLogsResponse line;
    line.set_line("thread 7");
    line.set_evidence(*knows && request.evidence());
    writer->Write(line);
    return grpc::Status::OK;
  };
  EXPECT_EQ(Run({"logs", "j", "--evidence"}), 0);
  EXPECT_EQ(out_, "thread 7\n");
  *knows = false;
  EXPECT_EQ(Run({"logs", "j", "--evidence"}), kExitFailed);
  EXPECT_NE(err_.find("--evidence is not supported by this coordinator"), std::string::npos);
  for (const char* other : {"--follow", "--tail=3", "--since=5m"})
    EXPECT_EQ(Run({"logs", "j", "--evidence", other}), kExitUsage) << other;
}

}  // namespace
}  // namespace fsdpd
