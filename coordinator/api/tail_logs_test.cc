// Logs of real calls to a complete coordinator; only the agents are scripted.
#include "coordinator/api/tail_logs.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include "coordinator/testing/served_case.h"
#include "coordinator/testing/tiny_spec.h"

namespace fsdpd {
namespace {

using ::testing::HasSubstr;
using Body = v1::CoordinatorMessage;
using TailLogsTest = ServedCase;

TEST_F(TailLogsTest, MergesAndFollowsLogsOfTwoNodes) {
  const auto a = Agent("node-0", 1), b = Agent("node-1", 1);
  const v1::Job job = SubmitOrDie(TinySpec(2, 1));
  const AttemptRef ref = {job.id(), 1};
  ASSERT_TRUE(a->Await(Body::kLaunch).has_value());
  ASSERT_TRUE(b->Await(Body::kLaunch).has_value());
  grpc::ClientContext context;
  v1::TailLogsRequest request;
  request.set_id(job.id());
  request.set_follow(true);
  request.set_tail_lines(5);
  auto reader = stub_->TailLogs(&context, request);
  const auto send_line = [](ScriptedAgent* agent, int64_t id, int rank, const std::string& text, bool end) {
    v1::AgentMessage message;
    message.mutable_logs()->set_request(id);
    message.mutable_logs()->set_end(end);
    auto* line = message.mutable_logs()->add_lines();
    line->set_rank(rank);
    line->set_attempt(1);
    line->set_line(text);
    agent->Send(message);
  };
  const auto read_a = a->Await(Body::kReadLogs), read_b = b->Await(Body::kReadLogs);
  ASSERT_TRUE(read_a.has_value() && read_b.has_value());
  EXPECT_TRUE(read_a->read_logs().follow());
  EXPECT_EQ(read_a->read_logs().tail_lines(), 5);
  EXPECT_EQ(read_a->read_logs().rank(), -1);
  send_line(a.get(), read_a->read_logs().request(), 0, "hello", false);
  v1::TailLogsResponse line;
  ASSERT_TRUE(reader->Read(&line));
  EXPECT_EQ(line.line(), "hello");
  send_line(b.get(), read_b->read_logs().request(), 1, "world", true);
  ASSERT_TRUE(reader->Read(&line));
  EXPECT_EQ(line.rank(), 1);
  a->Exit(ref, 0, 0);
  b->Exit(ref, 1, 0);
  AwaitState(job.id(), v1::JOB_STATE_SUCCEEDED);
  send_line(a.get(), read_a->read_logs().request(), 0, "bye", true);
  ASSERT_TRUE(reader->Read(&line));
  EXPECT_EQ(line.line(), "bye");
  EXPECT_FALSE(reader->Read(&line));
  EXPECT_TRUE(reader->Finish().ok());
}

// `logs -f` on a queued job saw the new attempt, requested its log before the agent had the launch, and ended
// with exit code 4.
TEST_F(TailLogsTest, FollowerThatIsFasterThanTheLaunchWaits) {
  const v1::Job job = SubmitOrDie(TinySpec());
  grpc::ClientContext context;
  v1::TailLogsRequest request;
  request.set_id(job.id());
  request.set_follow(true);
  auto reader = stub_->TailLogs(&context, request);
  const auto agent = Agent("node-0", 1);
  const auto answer = [&](int64_t id, const std::string& text) {
    v1::AgentMessage message;
    message.mutable_logs()->set_request(id);
    message.mutable_logs()->set_end(true);
    message.mutable_logs()->set_no_such_log(text.empty());
    if (text.empty()) message.mutable_logs()->set_error("this node has no log of it");
    if (!text.empty()) message.mutable_logs()->add_lines()->set_line(text);
    for (auto& line : *message.mutable_logs()->mutable_lines()) line.set_attempt(1);
    agent->Send(message);
  };
  for (const char* text : {"", "", "hello"}) {
    const auto read = agent->Await(Body::kReadLogs);
    ASSERT_TRUE(read.has_value());
    answer(read->read_logs().request(), text);
  }
  v1::TailLogsResponse line;
  ASSERT_TRUE(reader->Read(&line));
  EXPECT_EQ(line.line(), "hello");
  agent->Exit({job.id(), 1}, 0, 0);
  AwaitState(job.id(), v1::JOB_STATE_SUCCEEDED);
  EXPECT_FALSE(reader->Read(&line));
  EXPECT_TRUE(reader->Finish().ok());
}

TEST_F(TailLogsTest, LogsReportWhyThereAreNone) {
  const v1::Job job = SubmitOrDie(TinySpec());
  const auto tail = [&](int rank) {
    grpc::ClientContext context;
    v1::TailLogsRequest request;
    request.set_id(job.id());
    if (rank >= 0) request.set_rank(rank);
    v1::TailLogsResponse line;
    auto reader = stub_->TailLogs(&context, request);
    EXPECT_FALSE(reader->Read(&line));
    return reader->Finish();
  };
  EXPECT_EQ(tail(-1).error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(tail(9).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  {
    const auto agent = Agent("node-0", 1);
    ASSERT_TRUE(agent->Await(Body::kLaunch).has_value());
    agent->Exit({job.id(), 1}, 0, 0);
    AwaitState(job.id(), v1::JOB_STATE_SUCCEEDED);
  }
  const grpc::Status gone = tail(-1);
  EXPECT_EQ(gone.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(gone.error_message(), HasSubstr("node-0"));
}

}  // namespace
}  // namespace fsdpd
