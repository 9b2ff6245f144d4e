// Logs and steps of attempts before a job's newest, which nodes may have dropped, tested with a whole
// coordinator in one process.
#include <absl/strings/str_format.h>
#include <absl/time/clock.h>
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>

#include "base/temp_dir.h"
#include "coordinator/job/job_machine.h"
#include "coordinator/serve/server.h"
#include "coordinator/store/sqlite_store.h"
#include "coordinator/testing/scripted_agent.h"
#include "coordinator/testing/tiny_spec.h"
#include "proto/fsdpd/v1/coordinator.grpc.pb.h"

namespace fsdpd {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class OldLogsTest : public ::testing::Test {
 protected:
  // A job that has ended. Its first attempt ran only on node-1, the others on several nodes, according to
  // their launch events.
  void SetUp() override {
    v1::Job job;
    job.set_id("tiny-1");
    *job.mutable_spec() = TinySpec();
    job.set_state(v1::JOB_STATE_SUCCEEDED);
    for (const char* node : {"node-1", "", ""}) {
      job.set_attempt(job.attempt() + 1);
      AddEvent(v1::EVENT_KIND_LAUNCHED, "launched", absl::Now(), &job);
      job.mutable_events()->rbegin()->set_node(node);
    }
    v1::Job::Placement* placement = job.add_placements();
    placement->set_node("node-1");
    placement->set_ranks(1);
    {
      auto store = SqliteStore::Open(dir_.path());
      ASSERT_TRUE(store.ok()) << store.status();
      ASSERT_TRUE((*store)->Insert(job).ok());
    }
    ServerOptions options;
    options.listen = "127.0.0.1:0";
    options.state_dir = dir_.path();
    options.reconciler.tick = absl::Milliseconds(10);
    auto server = Server::Start(options);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = std::move(*server);
    stub_ =
        v1::Coordinator::NewStub(grpc::CreateChannel(server_->address(), grpc::InsecureChannelCredentials()));
  }
  std::unique_ptr<ScriptedAgent> Agent(const std::string& node, bool evidence = false) {
    ScriptedAgent::Options options;
    options.node = node;
    options.evidence = evidence;
    auto agent = std::make_unique<ScriptedAgent>(server_->address(), options);
    EXPECT_TRUE(agent->AwaitWelcome());
    return agent;
  }
  // It was connected, and the coordinator saw it disconnect.
  void LeaveBehind(const std::string& node) {
    Agent(node).reset();
    for (bool disconnected = false; !disconnected; std::this_thread::yield()) {
      grpc::ClientContext context;
      v1::ListNodesResponse nodes;
      ASSERT_TRUE(stub_->ListNodes(&context, {}, &nodes).ok());
      for (const v1::Node& each : nodes.nodes())
        disconnected = disconnected || (each.name() == node && !each.connected());
    }
  }
  // Reads the log of an attempt. `agent`, if set, is asked and has none.
  grpc::Status Tail(int attempt, ScriptedAgent* agent = nullptr, bool evidence = false) {
    grpc::ClientContext context;
    v1::TailLogsRequest request;
    request.set_id("tiny-1");
    request.set_attempt(attempt);
    request.set_evidence(evidence);
    auto reader = stub_->TailLogs(&context, request);
    if (agent != nullptr) {
      const auto read = agent->Await(v1::CoordinatorMessage::kReadLogs);
      EXPECT_TRUE(read.has_value());
      if (!read.has_value()) return grpc::Status::CANCELLED;
      v1::AgentMessage message;
      message.mutable_logs()->set_request(read->read_logs().request());
      message.mutable_logs()->set_end(true);
      message.mutable_logs()->set_error("there is none");
      message.mutable_logs()->set_no_such_log(true);
      agent->Send(message);
    }
    v1::TailLogsResponse line;
    EXPECT_FALSE(reader->Read(&line));
    return reader->Finish();
  }

  TempDir dir_;
  std::unique_ptr<Server> server_;
  std::unique_ptr<v1::Coordinator::Stub> stub_;
};

TEST_F(OldLogsTest, MissingLogIsNotFoundEvenIfOthersAreDisconnected) {
  LeaveBehind("node-0");
  const auto agent = Agent("node-1");
  const grpc::Status gone = Tail(1, agent.get());
  EXPECT_EQ(gone.error_code(), grpc::StatusCode::NOT_FOUND) << gone.error_message();
  const grpc::Status unknown = Tail(2, agent.get());
  EXPECT_EQ(unknown.error_code(), grpc::StatusCode::UNAVAILABLE) << "node-0 may have been one of its nodes";
  EXPECT_THAT(unknown.error_message(), HasSubstr("node-0"));
}

TEST_F(OldLogsTest, NamesOnlyDisconnectedHostOfAttempt) {
  LeaveBehind("node-1");
  LeaveBehind("node-2");
  const auto agent = Agent("node-0");
  const grpc::Status disconnected = Tail(1, agent.get());
  EXPECT_EQ(disconnected.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(disconnected.error_message(), HasSubstr("node-1"));
  EXPECT_THAT(disconnected.error_message(), Not(HasSubstr("node-2")));
}

// Regression: the response was an empty log.
TEST_F(OldLogsTest, ReturnsErrorWithoutConnectedNodes) {
  EXPECT_EQ(Tail(1).error_code(), grpc::StatusCode::UNAVAILABLE) << "its node is no longer known";
  EXPECT_EQ(Tail(2).error_code(), grpc::StatusCode::NOT_FOUND);
  LeaveBehind("node-0");
  EXPECT_EQ(Tail(2).error_code(), grpc::StatusCode::UNAVAILABLE);
}

// Regression: any number was forwarded to the agents.
TEST_F(OldLogsTest, RejectsTailLinesAboveLimitWithFieldAndLimit) {
  grpc::ClientContext context;
  v1::TailLogsRequest request;
  request.set_id("tiny-1");
  request.set_tail_lines(100'001);
  auto reader = stub_->TailLogs(&context, request);
  v1::TailLogsResponse line;
  EXPECT_FALSE(reader->Read(&line));
  const grpc::Status refused = reader->Finish();
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(refused.error_message(), HasSubstr("tail_lines"));
  EXPECT_THAT(refused.error_message(), HasSubstr("must be 0 to 100000 (got 100001)"));
}

// An older agent would send its log instead.
TEST_F(OldLogsTest, DoesNotAskOlderAgentForEvidence) {
  const auto agent = Agent("node-1");
  grpc::ClientContext context;
  v1::TailLogsRequest request;
  request.set_id("tiny-1");
  request.set_evidence(true);
  auto reader = stub_->TailLogs(&context, request);
  v1::TailLogsResponse line;
  EXPECT_FALSE(reader->Read(&line));
  const grpc::Status refused = reader->Finish();
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(refused.error_message(), HasSubstr("the agent of node node-1 is of release"));
}

// Regression: during a rolling upgrade of agents no evidence was available.
TEST_F(OldLogsTest, OlderAgentDoesNotHideEvidenceOfOthers) {
  const auto older = Agent("node-0");
  const auto agent = Agent("node-1", /*evidence=*/true);
  const grpc::Status none = Tail(1, agent.get(), /*evidence=*/true);
  EXPECT_EQ(none.error_code(), grpc::StatusCode::NOT_FOUND) << none.error_message();
  EXPECT_THAT(none.error_message(), HasSubstr("no evidence of a rank without progress in attempt 1"));
  const grpc::Status unknown = Tail(2, agent.get(), /*evidence=*/true);
  EXPECT_EQ(unknown.error_code(), grpc::StatusCode::FAILED_PRECONDITION)
      << "node-0 may have been one of its nodes";
  EXPECT_THAT(unknown.error_message(), HasSubstr("the agent of node node-0 is of release"));
  EXPECT_FALSE(older->HasReceived(v1::CoordinatorMessage::kReadLogs));
}

// Regression: the user was asked to wait for a node that had no evidence, and not told which attempt hung.
TEST_F(OldLogsTest, MissingEvidenceOfNewestAttemptIsNotFound) {
  LeaveBehind("node-0");
  const auto agent = Agent("node-1", /*evidence=*/true);
  const grpc::Status none = Tail(3, agent.get(), /*evidence=*/true);
  EXPECT_EQ(none.error_code(), grpc::StatusCode::NOT_FOUND) << none.error_message();
  const grpc::Status unknown = Tail(2, agent.get(), /*evidence=*/true);
  EXPECT_EQ(unknown.error_code(), grpc::StatusCode::UNAVAILABLE) << "node-0 may have been one of its nodes";
  EXPECT_THAT(unknown.error_message(), HasSubstr("has evidence of"));
}

TEST_F(OldLogsTest, DoesNotAskUnusedNodeForSteps) {
  LeaveBehind("node-0");
  LeaveBehind("node-1");
  grpc::ClientContext context;
  v1::ListStepsRequest request;
  request.set_id("tiny-1");
  request.set_attempt(1);
  v1::ListStepsResponse response;
  const grpc::Status status = stub_->ListSteps(&context, request, &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  ASSERT_EQ(response.unread_size(), 1) << response.ShortDebugString();
  EXPECT_EQ(response.unread(0).node(), "node-1");
}

// Regression: a node that hosted rank 0 once answered for all attempts.
TEST_F(OldLogsTest, RejectsStepsFromNodeThatDidNotHostRankZero) {
  const auto agent = Agent("node-0");
  v1::ListStepsResponse response;
  grpc::Status status;
  std::thread lists([&] {
    grpc::ClientContext context;
    v1::ListStepsRequest request;
    request.set_id("tiny-1");
    status = stub_->ListSteps(&context, request, &response);
  });
  const auto read = agent->Await(v1::CoordinatorMessage::kReadLogs);
  v1::AgentMessage message;
  for (const int attempt : {1, 2, 3}) {
    v1::LogLines::Line* line = message.mutable_logs()->add_lines();
    line->set_line(absl::StrFormat(R"({"attempt":%d,"began":%d,"first":%d,"last":%d})", attempt, attempt,
                                   attempt, attempt));
    line = message.mutable_logs()->add_lines();
    line->set_line(absl::StrFormat(R"({"attempt":%d,"step":%d})", attempt, attempt));
    line->set_step(attempt);
  }
  message.mutable_logs()->set_request(read.has_value() ? read->read_logs().request() : 0);
  message.mutable_logs()->set_end(true);
  agent->Send(message);
  lists.join();
  ASSERT_TRUE(status.ok()) << status.error_message();
  ASSERT_EQ(response.steps_size(), 1) << response.ShortDebugString();
  EXPECT_EQ(response.steps(0).attempt(), 2) << "its node is unknown";
}

}  // namespace
}  // namespace fsdpd
