// Launches that a connected agent does not acknowledge.
#include "base/rank/exit_code.h"
#include "coordinator/attempt/launch_waits.h"
#include "coordinator/testing/reconciler_case.h"

namespace fsdpd {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

class ReconcilerLaunchTest : public ReconcilerCase {
 protected:
  ReconcilerLaunchTest() { agents_acknowledge_ = true; }

  void Acknowledge(const std::string& node, const std::string& id, int first_rank, int attempt = 1) {
    v1::RankUpdate update = Update(id, first_rank, attempt);
    update.mutable_launch_acknowledged();
    reconciler_->OnReport(node, update, 0);
    reconciler_->RunOnce();
  }
  std::string Reason() { return Job("j").reason(); }
};

TEST_F(ReconcilerLaunchTest, UnansweredLaunchIsResentThenFailsOnThatNode) {
  Attach("a", 1);
  Submit("j", 1, 1, /*max_attempts=*/2);
  std::vector<v1::Launch> sent = LaunchesSent("a");
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_FALSE(sent[0].resent());
  Attach("b", 1);
  Advance(absl::Seconds(5));
  EXPECT_EQ(Reason(), "launch is not acknowledged by a; resending it every 5s, the attempt fails after 1m");
  EXPECT_EQ(Job("j").events().rbegin()->node(), "a");
  sent = LaunchesSent("a");
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_TRUE(sent[0].resent());
  EXPECT_EQ(sent[0].attempt(), 1);
  const int events = Job("j").event_count();
  Advance(absl::Seconds(54));
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_STARTING);
  EXPECT_EQ(LaunchesSent("a").size(), 10u) << "after 10 s, 15 s, ... 55 s";
  EXPECT_EQ(Job("j").event_count(), events) << "it is reported once";
  Advance(absl::Seconds(1));
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_STOPPING);
  EXPECT_EQ(Job("j").failure().error(), "the agent of node a has not acknowledged the launch for 1m");
  EXPECT_EQ(Job("j").failure().node(), "a");
  EXPECT_EQ(Job("j").failure().cause(), v1::FAILURE_CAUSE_NODE);
  EXPECT_TRUE(Job("j").failure().node_at_fault());
  EXPECT_TRUE(LaunchesSent("a").empty());
  Stopped("a", "j");
  Advance(absl::Seconds(2));
  EXPECT_EQ(Job("j").attempt(), 2);
  EXPECT_EQ(Job("j").placements(0).node(), "b");
}

// Regression: all attempts went to the node whose agent rejected them, while another node was idle.
TEST_F(ReconcilerLaunchTest, RejectedLaunchMovesToIdleNode) {
  Attach("a", 1);
  Submit("j", 1, 1, /*max_attempts=*/2);
  Attach("b", 1);
  v1::RankExit exit;
  exit.set_exit_code(kRefusedExitCode);
  exit.set_error("launch rejected: 1 ranks need as many slots, and 0 of 1 are free");
  ExitWith("a", "j", 0, exit);
  Stopped("a", "j");
  Advance(absl::Seconds(3));
  ASSERT_EQ(Job("j").attempt(), 2);
  EXPECT_EQ(Job("j").placements(0).node(), "b");
}

TEST_F(ReconcilerLaunchTest, UnansweredStopDelaysNextAttemptTenSeconds) {
  Attach("a", 1);
  Submit("j", 1, 1, /*max_attempts=*/2);
  Attach("b", 1);
  Advance(absl::Seconds(60));
  ASSERT_EQ(StateOf("j"), v1::JOB_STATE_STOPPING);
  Advance(absl::Seconds(9));
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_STOPPING);
  Advance(absl::Seconds(3));
  EXPECT_EQ(Job("j").attempt(), 2);
  EXPECT_EQ(Job("j").placements(0).node(), "b");
  Submit("next", 1, 1);
  EXPECT_EQ(StateOf("next"), v1::JOB_STATE_QUEUED) << "ranks may start on a at any time";
  StopsSent("a");
  Advance(absl::Seconds(5));
  EXPECT_EQ(StopsSent("a").size(), 1u) << "the stop is repeated";
  Stopped("a", "j");
  Advance(absl::Seconds(1));
  EXPECT_EQ(StateOf("next"), v1::JOB_STATE_STARTING);
}

TEST_F(ReconcilerLaunchTest, CancelDoesNotWaitForUnresponsiveAgent) {
  StartOn({"a"});
  Advance(absl::Seconds(10));
  ASSERT_TRUE(Cancel("j").ok());
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_CANCELLING);
  Advance(absl::Seconds(65));
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_CANCELLED);
  EXPECT_EQ(Reason(),
            "cancelled, all ranks elsewhere are gone; the agent of a acknowledged neither the launch nor the "
            "stop");
}

TEST_F(ReconcilerLaunchTest, LastAttemptOnUnresponsiveNodeEndsJob) {
  StartOn({"a"});
  Advance(absl::Seconds(71));
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_FAILED);
  EXPECT_THAT(Reason(), HasSubstr("has not acknowledged the launch for 1m"));
}

TEST_F(ReconcilerLaunchTest, LateStartHoldsNextAttemptUntilRanksEnd) {
  Attach("a", 1);
  Submit("j", 1, 1, /*max_attempts=*/2);
  Advance(absl::Seconds(60));
  Acknowledge("a", "j", 0);
  Attach("b", 1);
  Advance(absl::Seconds(30));
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_STOPPING) << "it has ranks of attempt 1";
  Stopped("a", "j");
  Advance(absl::Seconds(2));
  EXPECT_EQ(Job("j").attempt(), 2);
}

TEST_F(ReconcilerLaunchTest, AcknowledgedLaunchIsNotResent) {
  StartOn({"a", "b"});
  Acknowledge("a", "j", 0);
  Acknowledge("b", "j", 1);
  LaunchesSent("a");
  Advance(absl::Minutes(4));
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_STARTING);
  EXPECT_TRUE(LaunchesSent("a").empty());
  EXPECT_THAT(Reason(), Not(HasSubstr("acknowledged")));
}

TEST_F(ReconcilerLaunchTest, AcknowledgementEndsWaitAndIsReported) {
  StartOn({"a", "b"});
  Acknowledge("a", "j", 0);
  Advance(absl::Seconds(6));
  EXPECT_THAT(Reason(), HasSubstr("not acknowledged by b;"));
  Acknowledge("b", "j", 1);
  EXPECT_EQ(Reason(), "all launches are acknowledged");
  Ready("a", "j", 0);
  Ready("b", "j", 1);
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_RUNNING);
}

TEST_F(ReconcilerLaunchTest, RankReportAnswersLaunch) {
  StartOn({"a", "b"});
  Ready("a", "j", 0);
  Exit("b", "j", 1, 0);
  Advance(absl::Seconds(6));
  EXPECT_THAT(Reason(), Not(StartsWith(kLaunchNotAcknowledged)));
}

TEST_F(ReconcilerLaunchTest, OlderAgentIsReportedButNotResentOrFailed) {
  agents_acknowledge_ = false;
  StartOn({"old"});
  LaunchesSent("old");
  Advance(absl::Minutes(3));
  EXPECT_THAT(Reason(), Not(StartsWith(kLaunchNotAcknowledged)));
  Advance(absl::Minutes(1));
  EXPECT_THAT(Reason(), HasSubstr("not acknowledged by old, of an older release"));
  Advance(absl::Minutes(30));
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_STARTING);
  EXPECT_TRUE(LaunchesSent("old").empty());
}

TEST_F(ReconcilerLaunchTest, RegistrationAnswersLaunchAndNewProcessGetsNone) {
  StartOn({"a"});
  Advance(absl::Seconds(4));
  Detach("a");
  instance_ = 2;
  Attach("a", 1);
  Advance(absl::Seconds(1));
  EXPECT_TRUE(LaunchesSent("a").empty()) << "another process would start the ranks again";
  Advance(absl::Seconds(2));
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_STOPPING);
  EXPECT_THAT(Reason(), HasSubstr("no longer has its ranks"));
}

TEST_F(ReconcilerLaunchTest, DoesNotResendBeforeRegistrationIsProcessed) {
  StartOn({"a"});
  Advance(absl::Seconds(4));
  Detach("a");
  v1::Register info;
  info.set_node("a");
  info.set_instance("another process");
  info.set_device(v1::DEVICE_CPU);
  info.set_slots(1);
  auto outbox = nodes_->Attach(info, "test", nullptr);
  ASSERT_TRUE(outbox.ok()) << outbox.status();
  outboxes_["a"] = *outbox;
  Advance(absl::Seconds(2));
  EXPECT_TRUE(LaunchesSent("a").empty());
}

TEST_F(ReconcilerLaunchTest, WaitRestartsAfterCoordinatorDidNotRun) {
  StartOn({"a"});
  Advance(absl::Seconds(50));
  StallRank(absl::Minutes(2));
  Advance(absl::Seconds(30));
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_STARTING);
  Advance(absl::Seconds(31));
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_STOPPING);
}

}  // namespace
}  // namespace fsdpd
