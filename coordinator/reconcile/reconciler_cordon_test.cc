// Placement after a failed attempt, and cordoned nodes.
#include <algorithm>
#include <optional>

#include "base/limits.h"
#include "coordinator/testing/full_disk.h"
#include "coordinator/testing/reconciler_case.h"

namespace fsdpd {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class ReconcilerCordonTest : public ReconcilerCase {
 protected:
  absl::Status Cordon(const std::string& node, const std::string& reason = "") {
    return reconciler_->Cordon(node, reason);
  }
  absl::Status Uncordon(const std::string& node) { return reconciler_->Uncordon(node); }
  std::string NodeOf(const std::string& id) {
    return Job(id).placements_size() == 1 ? Job(id).placements(0).node() : "";
  }
  // Ends the current attempt on all nodes and launches the next one, if any.
  void AwaitNext(const std::string& id) {
    const v1::Job job = Job(id);
    for (const v1::Job::Placement& placement : job.placements()) Stopped(placement.node(), id, job.attempt());
    Advance(absl::Seconds(65));
  }
  // Kills and restarts the node's agent, which fails the attempt that has ranks there.
  void KillAgent(const std::string& node, const std::string& id = "j") {
    Detach(node);
    outboxes_.erase(node);
    Advance(absl::Seconds(1));
    ++instance_;
    Attach(node, 1);
    Advance(absl::Seconds(3));
    AwaitNext(id);
  }
  void Lose(const std::string& node) {
    Detach(node);
    outboxes_.erase(node);
    Advance(absl::Minutes(1));
  }
  std::optional<v1::Cordon> CordonOf(const std::string& node) { return reconciler_->cordons().Find(node); }
};

TEST_F(ReconcilerCordonTest, CordonBlocksPlacementButNotRunningJobs) {
  RunOn({"a"});
  Attach("b", 1);
  ASSERT_TRUE(Cordon("a", "a fan is broken").ok());
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_RUNNING);
  ASSERT_TRUE(Cordon("b").ok());
  Submit("waits", 1, 1);
  EXPECT_EQ(
      Job("waits").reason(),
      "needs 1 node with 1 free cpu slot; a is cordoned (a fan is broken), b is cordoned; even when "
      "idle, no ready node could take 1 rank: uncordon a node, or add nodes, or nodes with more slots or "
      "memory");
  ASSERT_TRUE(Uncordon("b").ok());
  EXPECT_EQ(NodeOf("waits"), "b");
}

TEST_F(ReconcilerCordonTest, EmptyReasonKeepsPreviousReason) {
  Attach("a", 1);
  ASSERT_TRUE(Cordon("a", "a fan is broken").ok());
  ASSERT_TRUE(Cordon("a").ok());
  EXPECT_EQ(CordonOf("a")->reason(), "a fan is broken");
  ASSERT_TRUE(Cordon("a", "it smells").ok());
  EXPECT_EQ(CordonOf("a")->reason(), "it smells");
}

TEST_F(ReconcilerCordonTest, CordonSurvivesRestartOfCoordinatorAndAgent) {
  Attach("a", 1);
  ASSERT_TRUE(Cordon("a", "a fan is broken").ok());
  Restart();
  ASSERT_TRUE(CordonOf("a").has_value());
  EXPECT_EQ(CordonOf("a")->reason(), "a fan is broken");
  Attach("a", 1);
  Submit("j", 1, 1);
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_QUEUED);
  ASSERT_TRUE(Uncordon("a").ok());
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_STARTING);
}

TEST_F(ReconcilerCordonTest, DeletesLostNodeWithItsCordon) {
  Attach("a", 1);
  ASSERT_TRUE(Cordon("a", "a fan is broken").ok());
  const absl::Status ready = reconciler_->DeleteNode("a", /*force=*/true);
  EXPECT_EQ(ready.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(ready.message()), HasSubstr("node a is ready: stop its agent"));
  Detach("a");
  const absl::Status silent = reconciler_->DeleteNode("a", /*force=*/true);
  EXPECT_THAT(std::string(silent.message()), HasSubstr("not lost yet"));
  outboxes_.erase("a");
  Advance(absl::Minutes(1));
  ASSERT_TRUE(reconciler_->DeleteNode("a", /*force=*/false).ok());
  EXPECT_TRUE(nodes_->Snapshot().empty());
  EXPECT_FALSE(CordonOf("a").has_value());
  EXPECT_TRUE(store_->Nodes()->nodes().empty());
  EXPECT_TRUE(store_->Cordons()->empty());
  EXPECT_EQ(reconciler_->DeleteNode("a", false).code(), absl::StatusCode::kNotFound);
  const v1::Event deleted = store_->events().Read({})->events.rbegin()[1];  // Before its uncordon.
  EXPECT_EQ(deleted.kind(), v1::EVENT_KIND_NODE_DELETED);
  EXPECT_EQ(deleted.node(), "a");
  Restart();
  EXPECT_TRUE(nodes_->Snapshot().empty());
  Attach("a", 1);
  Submit("j", 1, 1);
  EXPECT_EQ(NodeOf("j"), "a");
}

TEST_F(ReconcilerCordonTest, DeletesNodeThatLeftWithoutWaiting) {
  Attach("a", 1);
  ASSERT_TRUE(nodes_->Detach("a", outboxes_.at("a")->stream_generation(), /*left=*/true));
  EXPECT_TRUE(reconciler_->DeleteNode("a", /*force=*/false).ok());
}

TEST_F(ReconcilerCordonTest, DeletesNodeWithUnconfirmedRanksOnlyByForce) {
  RunOn({"a"});
  Attach("b", 2);
  Lose("a");
  ASSERT_EQ(StateOf("j"), v1::JOB_STATE_FAILED);
  const auto refused = [&] {
    const absl::Status status = reconciler_->DeleteNode("a", /*force=*/false);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    return std::string(status.message());
  };
  EXPECT_THAT(refused(), HasSubstr("node a was lost with ranks of j, which may still run; make sure"));
  Advance(absl::Minutes(1));
  ASSERT_THAT(store_->Nodes()->nodes(0).unconfirmed_jobs(), ::testing::ElementsAre("j"));
  EXPECT_TRUE(reconciler_->DeleteNode("a", /*force=*/true).ok());
  EXPECT_THAT(store_->events().Read({})->events.back().message(), HasSubstr("ranks of j"));
}

TEST_F(ReconcilerCordonTest, ReconnectedAgentReportsItsRanks) {
  RunOn({"a"});
  Lose("a");
  ASSERT_EQ(nodes_->Snapshot()[0].unconfirmed_jobs.size(), 1u);
  Attach("a", 1);
  EXPECT_TRUE(nodes_->Snapshot()[0].unconfirmed_jobs.empty());
}

TEST_F(ReconcilerCordonTest, StoresRevokedCertificateWithOneEvent) {
  Attach("a", 1);
  nodes_->SetRevoked("a", outboxes_.at("a")->stream_generation(), "5a0c");
  Detach("a");
  outboxes_.erase("a");
  Advance(absl::Minutes(1));
  EXPECT_EQ(store_->Nodes()->nodes(0).revoked_serial(), "5a0c");
  int told = 0;
  const auto read = store_->events().Read({});
  ASSERT_TRUE(read.ok());
  for (const v1::Event& event : read->events) {
    if (event.kind() != v1::EVENT_KIND_CERTIFICATE_REVOKED) continue;
    ++told;
    EXPECT_EQ(event.node(), "a");
    EXPECT_EQ(event.message(), "its certificate with serial number 5a0c is revoked");
  }
  EXPECT_EQ(told, 1);
}

TEST_F(ReconcilerCordonTest, JobNamesRevokedNodeWithoutBlame) {
  RunOn({"a"});
  nodes_->SetRevoked("a", outboxes_.at("a")->stream_generation(), "5a0c");
  Detach("a");
  outboxes_.erase("a");
  Advance(absl::Seconds(2));
  EXPECT_EQ(Job("j").reason(), "waits for the agent of a to reconnect; the certificate of a is revoked");
  Advance(absl::Minutes(1));
  EXPECT_THAT(Job("j").failure().error(), HasSubstr("node a is lost: its agent's certificate is revoked"));
  EXPECT_FALSE(Job("j").failure().node_at_fault());
  EXPECT_FALSE(CordonOf("a").has_value());
}

TEST_F(ReconcilerCordonTest, UnknownNodeIsNotFoundAndUncordonIsIdempotent) {
  EXPECT_EQ(Cordon("nobody").code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Uncordon("nobody").code(), absl::StatusCode::kNotFound);
  Attach("a", 1);
  EXPECT_TRUE(Uncordon("a").ok());
  ASSERT_TRUE(Cordon("a", "first").ok());
  ASSERT_TRUE(Cordon("a", "second").ok());
  EXPECT_EQ(CordonOf("a")->reason(), "second");
  EXPECT_FALSE(CordonOf("a")->automatic());
}

TEST_F(ReconcilerCordonTest, RetryPrefersPreviousNodesButAvoidsFailedNode) {
  Attach("b", 1);
  Submit("j", 1, 1, /*max_attempts=*/5);
  Attach("a", 1);
  Exit("b", "j", 0, 1);
  Advance(absl::Seconds(1));
  AwaitNext("j");
  ASSERT_EQ(Job("j").attempt(), 2);
  EXPECT_EQ(NodeOf("j"), "b") << "in place";
  KillAgent("b");
  ASSERT_EQ(Job("j").attempt(), 3);
  EXPECT_EQ(NodeOf("j"), "a") << "elsewhere, although its agent has reconnected";
  EXPECT_EQ(Job("j").failed_attempts(0).cause(), v1::FAILURE_CAUSE_PROCESS);
  EXPECT_EQ(Job("j").failed_attempts(1).cause(), v1::FAILURE_CAUSE_NODE);
  EXPECT_TRUE(Job("j").failed_attempts(1).node_at_fault());
}

TEST_F(ReconcilerCordonTest, CordonsNodeAfterTwoFailedAttempts) {
  Attach("a", 1);
  Attach("b", 1);
  Submit("j", 2, 1, /*max_attempts=*/9);
  KillAgent("b");
  ASSERT_EQ(Job("j").attempt(), 2);
  EXPECT_FALSE(CordonOf("b").has_value());
  KillAgent("b");
  ASSERT_TRUE(CordonOf("b").has_value());
  EXPECT_TRUE(CordonOf("b")->automatic());
  EXPECT_THAT(CordonOf("b")->reason(),
              HasSubstr("two attempts in a row failed on this node: attempt 1 of j: the agent of node b no "
                        "longer has its ranks"));
  EXPECT_THAT(Job("j").reason(), HasSubstr("b is cordoned (two attempts in a row"));
  ASSERT_TRUE(Uncordon("b").ok());
  Advance(absl::Seconds(1));
  EXPECT_EQ(Job("j").attempt(), 3);
  KillAgent("b");
  EXPECT_FALSE(CordonOf("b").has_value()) << "the count restarts";
}

// Regression: two crashes cordoned a node until a user uncordoned it, and jobs waited although the node was
// healthy.
TEST_F(ReconcilerCordonTest, UncordonsHealthyNode) {
  Attach("a", 1);
  Attach("b", 1);
  Submit("j", 2, 1, /*max_attempts=*/9);
  KillAgent("b");
  KillAgent("b");  // AwaitNext() takes a minute of the five.
  ASSERT_TRUE(CordonOf("b").has_value());
  EXPECT_THAT(Job("j").reason(), HasSubstr("; lifted after 5m connected"));
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_QUEUED);
  Advance(kHealthyFor - absl::Seconds(90));
  Detach("b");
  Attach("b", 1);
  Advance(kHealthyFor - absl::Seconds(2));
  EXPECT_TRUE(CordonOf("b").has_value()) << "it was disconnected meanwhile";
  Advance(absl::Seconds(4));
  EXPECT_FALSE(CordonOf("b").has_value());
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_STARTING);
  KillAgent("b");
  EXPECT_TRUE(CordonOf("b").has_value()) << "one more failure within the hour";
}

// Regression: the five minutes restarted, and the failure count was lost.
TEST_F(ReconcilerCordonTest, RestartKeepsHealthTimeAndFailures) {
  Attach("a", 1);
  Attach("b", 1);
  Submit("j", 2, 1, /*max_attempts=*/9);
  KillAgent("b");
  Restart();
  for (const char* node : {"a", "b"}) Attach(node, 1, {{"j", 2}});
  Advance(absl::Seconds(65));
  ASSERT_FALSE(CordonOf("b").has_value());
  KillAgent("b");
  ASSERT_TRUE(CordonOf("b").has_value());
  EXPECT_THAT(CordonOf("b")->reason(), HasSubstr("two attempts in a row"));
  Advance(absl::Minutes(2));
  Restart();
  for (const char* node : {"a", "b"}) Attach(node, 1);
  Advance(kHealthyFor - absl::Minutes(3) - absl::Seconds(10));  // AwaitNext() took a minute.
  EXPECT_TRUE(CordonOf("b").has_value());
  Advance(absl::Seconds(15));
  EXPECT_FALSE(CordonOf("b").has_value());
  Restart();
  for (const char* node : {"a", "b"}) Attach(node, 1, {{"j", 3}});
  Advance(absl::Seconds(65));
  KillAgent("b");
  EXPECT_TRUE(CordonOf("b").has_value()) << "one more failure within the hour";
}

TEST_F(ReconcilerCordonTest, AgentRestartOrLateReconnectResetsHealthTime) {
  Attach("a", 1);
  Attach("b", 1);
  Submit("j", 2, 1, /*max_attempts=*/9);
  KillAgent("b");
  for (const bool late : {false, true}) {
    KillAgent("b");
    ASSERT_TRUE(CordonOf("b").has_value());
    Advance(absl::Minutes(2));
    Restart();
    Attach("a", 1);
    if (late) Advance(absl::Minutes(1));
    if (!late) ++instance_;
    Attach("b", 1);
    Advance(kHealthyFor - absl::Seconds(5));
    EXPECT_TRUE(CordonOf("b").has_value()) << late;
    Advance(absl::Seconds(10));
    EXPECT_FALSE(CordonOf("b").has_value()) << late;
  }
}

// Regression: a store that rejected writes was retried in every tick, ten times per second.
TEST_F(ReconcilerCordonTest, UncordonPausesAfterFailedWrite) {
  Attach("a", 1);
  Attach("b", 1);
  Submit("j", 2, 1, /*max_attempts=*/9);
  KillAgent("b");
  KillAgent("b");
  ASSERT_TRUE(CordonOf("b").has_value());
  std::optional<FullDisk> full(std::in_place);
  Advance(kHealthyFor);
  full.reset();
  ASSERT_TRUE(CordonOf("b").has_value());
  Advance(absl::Seconds(2));
  EXPECT_TRUE(CordonOf("b").has_value());
  Advance(absl::Seconds(10));
  EXPECT_FALSE(CordonOf("b").has_value());
}

TEST_F(ReconcilerCordonTest, KeepsCordonOfUser) {
  Attach("a", 1);
  Attach("b", 1);
  Submit("j", 2, 1, /*max_attempts=*/9);
  KillAgent("b");
  KillAgent("b");
  ASSERT_TRUE(CordonOf("b")->automatic());
  ASSERT_TRUE(Cordon("b").ok());
  ASSERT_TRUE(Cordon("a", "a fan is broken").ok());
  EXPECT_THAT(CordonOf("b")->reason(), HasSubstr("two attempts in a row"));
  EXPECT_THAT(Job("j").reason(), HasSubstr("two attempts in a row"));
  EXPECT_THAT(Job("j").reason(), Not(HasSubstr("lifted after")));
  EXPECT_THAT(ShownReason(*CordonOf("b")), Not(HasSubstr("lifted after")));
  Advance(2 * kHealthyFor);
  EXPECT_TRUE(CordonOf("a").has_value());
  EXPECT_TRUE(CordonOf("b").has_value());
}

TEST_F(ReconcilerCordonTest, CrashingJobCordonsNoNode) {
  Attach("a", 1);
  Attach("b", 1);
  Submit("j", 2, 1, /*max_attempts=*/9);
  for (int attempt = 1; attempt <= 4; ++attempt) {
    v1::RankExit killed;
    killed.set_signal(attempt % 2 == 0 ? 9 : 11);
    ExitWith("b", "j", 1, killed, attempt);
    Exit("a", "j", 0, 1, attempt);
    Advance(absl::Seconds(1));
    AwaitNext("j");
    ASSERT_EQ(Job("j").attempt(), attempt + 1);
  }
  EXPECT_TRUE(reconciler_->cordons().All().empty());
}

TEST_F(ReconcilerCordonTest, CordonsNodeAfterTwoFailedLaunches) {
  Attach("a", 1);
  v1::RankExit refused;
  refused.set_exit_code(126);
  refused.set_error("launch rejected: rank binary: No such file or directory");
  refused.mutable_error_class()->set_kind(v1::ErrorClass::KIND_NODE);
  for (const char* id : {"x", "y"}) {
    Submit(id, 1, 1);
    ASSERT_EQ(NodeOf(id), "a");
    if (id == std::string("y")) Attach("b", 1);  // Another usable node remains.
    ExitWith("a", id, 0, refused);
    Advance(absl::Seconds(1));
    Stopped("a", id);
    EXPECT_EQ(Job(id).failure().cause(), v1::FAILURE_CAUSE_NODE);
  }
  ASSERT_TRUE(CordonOf("a").has_value());
  EXPECT_THAT(CordonOf("a")->reason(), HasSubstr("attempt 1 of x: launch rejected: rank binary"));
}

TEST_F(ReconcilerCordonTest, SuccessfulJobForgivesFailure) {
  Attach("a", 1);
  Attach("b", 1);
  Submit("j", 2, 1, /*max_attempts=*/9);
  KillAgent("b");
  ASSERT_EQ(Job("j").attempt(), 2);
  for (const char* node : {"a", "b"}) Exit(node, "j", node[0] - 'a', 0, 2);
  for (const char* node : {"a", "b"}) Stopped(node, "j", 2);
  ASSERT_EQ(StateOf("j"), v1::JOB_STATE_SUCCEEDED);
  Submit("k", 2, 1, /*max_attempts=*/9);
  KillAgent("b", "k");
  EXPECT_FALSE(CordonOf("b").has_value());
}

TEST_F(ReconcilerCordonTest, DoesNotCordonOnlyNode) {
  Attach("a", 1);
  Submit("j", 1, 1, /*max_attempts=*/9);
  for (int attempt = 1; attempt <= 4; ++attempt) {
    ASSERT_EQ(Job("j").attempt(), attempt);
    KillAgent("a");
  }
  EXPECT_FALSE(CordonOf("a").has_value());
}

TEST_F(ReconcilerCordonTest, NodesSilentTogetherAreNotBlamed) {
  for (const char* node : {"a", "b", "c", "d"}) Attach(node, 1);
  Submit("x", 2, 1, /*max_attempts=*/9);
  Submit("y", 2, 1, /*max_attempts=*/9);
  for (int outage = 1; outage <= 3; ++outage) {
    const v1::Job x = Job("x"), y = Job("y");
    const std::vector<std::string> silent = {x.placements(1).node(), y.placements(1).node()};
    for (const std::string& node : silent) {
      Detach(node);
      outboxes_.erase(node);
    }
    Advance(absl::Milliseconds(kAgentLostAfterMs) + absl::Seconds(2));
    for (const v1::Job& job : {x, y}) {
      EXPECT_EQ(Job(job.id()).failure().node(), job.placements(1).node());
      Stopped(job.placements(0).node(), job.id(), job.attempt());
    }
    for (const std::string& node : silent) Attach(node, 1);
    Advance(absl::Seconds(30));
    ASSERT_EQ(Job("x").attempt(), outage + 1);
    ASSERT_EQ(Job("y").attempt(), outage + 1);
  }
  EXPECT_TRUE(reconciler_->cordons().All().empty());
}

}  // namespace
}  // namespace fsdpd
