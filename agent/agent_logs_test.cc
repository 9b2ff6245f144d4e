// Tests of log requests to a complete agent, over real gRPC.
#include <absl/strings/match.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

#include "agent/testing/agent_case.h"
#include "base/limits.h"

namespace fsdpd {
namespace {

// Lines of one log request, and its error.
std::vector<std::string> LinesOf(ScriptedCoordinator* coordinator, int64_t request,
                                 std::string* error = nullptr) {
  const v1::AgentMessage end = coordinator->Await([&](const v1::AgentMessage& m) {
    return m.has_logs() && m.logs().request() == request && m.logs().end();
  });
  if (error != nullptr) *error = end.logs().error();
  std::vector<std::string> lines;
  for (const v1::AgentMessage& message : coordinator->Received()) {
    if (message.logs().request() != request) continue;
    for (const v1::LogLines::Line& line : message.logs().lines()) lines.push_back(line.line());
  }
  return lines;
}

v1::CoordinatorMessage ReadLogs(int64_t request, const std::string& job, int rank, bool follow = false,
                                int tail = 0) {
  v1::CoordinatorMessage message;
  v1::ReadLogs* ask = message.mutable_read_logs();
  ask->set_request(request);
  ask->set_job_id(job);
  ask->set_attempt(1);
  ask->set_rank(rank);
  ask->set_follow(follow);
  ask->set_tail_lines(tail);
  return message;
}

TEST(AgentLogs, ReadsWholeLogsAndTails) {
  ScriptedCoordinator coordinator;
  Node node(&coordinator);
  coordinator.AwaitRegister(1);
  coordinator.Send(Launch("flood"));
  coordinator.AwaitExit("flood-k3x9q2", 1, 0);
  coordinator.Send(ReadLogs(1, "flood-k3x9q2", 0));
  const std::vector<std::string> all = LinesOf(&coordinator, 1);
  ASSERT_EQ(all.size(), 20002u);
  EXPECT_EQ(all[0], "flood 0");
  EXPECT_EQ(all[19999], "flood 19999");
  EXPECT_EQ(all[20000], std::string(kMaxLogLineBytes, 'x') + " [83616 bytes cut]");
  EXPECT_EQ(all[20001], "binary \xEF\xBF\xBD\xEF\xBF\xBD end");
  coordinator.Send(ReadLogs(2, "flood-k3x9q2", -1, false, 3));
  EXPECT_EQ(LinesOf(&coordinator, 2), (std::vector<std::string>{"flood 19999", all[20000], all[20001]}));
  std::string error;
  coordinator.Send(ReadLogs(3, "flood-k3x9q2", 7));
  EXPECT_EQ(LinesOf(&coordinator, 3, &error), std::vector<std::string>{});
  EXPECT_EQ(error, "this node has no log of job=flood-k3x9q2 attempt=1 rank=7");
  coordinator.Send(ReadLogs(4, "../etc", 0));
  LinesOf(&coordinator, 4, &error);
  EXPECT_TRUE(absl::StrContains(error, "job_id")) << error;
}

TEST(AgentLogs, LogWithAWindowContinuesAfterAGrant) {
  ScriptedCoordinator coordinator;
  Node node(&coordinator);
  coordinator.AwaitRegister(1);
  coordinator.Send(Launch("flood"));
  coordinator.AwaitExit("flood-k3x9q2", 1, 0);
  v1::CoordinatorMessage ask = ReadLogs(1, "flood-k3x9q2", 0);
  ask.mutable_read_logs()->set_window_bytes(1);
  coordinator.Send(ask);
  coordinator.Await([](const v1::AgentMessage& m) { return m.logs().lines_size() > 0; });
  v1::CoordinatorMessage grant;
  grant.mutable_log_grant()->set_request(1);
  grant.mutable_log_grant()->set_bytes(1 << 30);
  coordinator.Send(grant);
  EXPECT_EQ(LinesOf(&coordinator, 1).size(), 20002u);
}

TEST(AgentLogs, FollowsALogUntilItsRankEnds) {
  ScriptedCoordinator coordinator;
  Node node(&coordinator);
  coordinator.AwaitRegister(1);
  coordinator.Send(Launch("orphans"));
  coordinator.AwaitReady("orphans-k3x9q2", 1, 0);
  coordinator.Send(ReadLogs(5, "orphans-k3x9q2", 0, /*follow=*/true));
  coordinator.Await([](const v1::AgentMessage& m) {
    return m.logs().request() == 5 && m.logs().lines_size() > 0 && m.logs().lines(0).line() == "orphaned";
  });
  // Data written from now on is delivered too, including an incomplete last line.
  std::ofstream(node.work.File("ranks/orphans-k3x9q2/attempt-1/rank-0.log"), std::ios::app)
      << "later\nunfinished";
  coordinator.Await([](const v1::AgentMessage& m) {
    return m.logs().lines_size() > 0 && m.logs().lines(0).line() == "later";
  });
  EXPECT_EQ(coordinator.Count([](const v1::AgentMessage& m) { return m.logs().end(); }), 0);
  coordinator.Send(Stop("orphans-k3x9q2", 1, 1000));
  EXPECT_EQ(LinesOf(&coordinator, 5), (std::vector<std::string>{"orphaned", "later", "unfinished"}));
}

}  // namespace
}  // namespace fsdpd
