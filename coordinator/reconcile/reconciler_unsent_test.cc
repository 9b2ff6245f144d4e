// Launches that were stored and never delivered: they are sent again as the same attempt.
#include "coordinator/testing/reconciler_case.h"

namespace fsdpd {
namespace {

class ReconcilerUnsentTest : public ReconcilerCase {
 protected:
  // Launches "j" on "a" and restarts the coordinator before the launch is read.
  void Die(int max_attempts = 1) {
    agents_report_had_ = true;
    Attach("a", 1);
    Submit("j", 1, 1, max_attempts);
    ASSERT_EQ(StateOf("j"), v1::JOB_STATE_STARTING);
    Restart();
  }
  // Whether the same attempt is launched again.
  bool SentAgain() {
    const std::vector<v1::Launch> launches = LaunchesSent("a");
    return launches.size() == 1 && launches[0].attempt() == 1 && launches[0].job_id() == "j" &&
           StateOf("j") == v1::JOB_STATE_STARTING;
  }
};

TEST_F(ReconcilerUnsentTest, UndeliveredLaunchIsResentAsSameAttempt) {
  Die();
  had_ = {{"other", 3}};
  Attach("a", 1);
  EXPECT_TRUE(SentAgain());
  Advance(absl::Seconds(60));
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_STARTING) << "it is not missed";
  Ready("a", "j", 0);
  Exit("a", "j", 0, 0);
  Stopped("a", "j");
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_SUCCEEDED);
  EXPECT_EQ(Job("j").attempt(), 1);
  EXPECT_TRUE(Job("j").failed_attempts().empty());
}

// Its ranks started and failed, and their exits are not reported any more.
TEST_F(ReconcilerUnsentTest, DeliveredAttemptWithoutRanksHasFailed) {
  Die(/*max_attempts=*/2);
  had_ = {{"j", 1}};
  Attach("a", 1);
  EXPECT_TRUE(LaunchesSent("a").empty());
  Advance(absl::Seconds(3));
  EXPECT_EQ(Job("j").failure().attempt(), 1);
  EXPECT_EQ(Job("j").failure().cause(), v1::FAILURE_CAUSE_NODE);
}

TEST_F(ReconcilerUnsentTest, NewAgentProcessIsNotResent) {
  Die(/*max_attempts=*/2);
  instance_ = 2;
  Attach("a", 1);
  EXPECT_TRUE(LaunchesSent("a").empty());
  Advance(absl::Seconds(3));
  EXPECT_EQ(Job("j").failure().attempt(), 1);
}

TEST_F(ReconcilerUnsentTest, OlderAgentIsNotResent) {
  Die(/*max_attempts=*/2);
  agents_report_had_ = false;
  Attach("a", 1);
  EXPECT_TRUE(LaunchesSent("a").empty());
  Advance(absl::Seconds(3));
  EXPECT_EQ(Job("j").failure().attempt(), 1);
}

TEST_F(ReconcilerUnsentTest, LaunchLostWithStreamIsResent) {
  agents_report_had_ = true;
  Attach("a", 1);
  Submit("j", 1, 1);
  Detach("a");
  Attach("a", 1);
  EXPECT_TRUE(SentAgain());
  Attach("a", 1, {{"j", 1}});
  EXPECT_TRUE(LaunchesSent("a").empty()) << "it was delivered";
  Advance(absl::Seconds(60));
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_STARTING);
}

TEST_F(ReconcilerUnsentTest, StoppingAttemptIsNotResent) {
  Die();
  ASSERT_TRUE(Cancel("j").ok());
  Attach("a", 1);
  EXPECT_TRUE(LaunchesSent("a").empty());
}

// The ranks that were launched on one of its nodes continue, and wait for the others.
TEST_F(ReconcilerUnsentTest, ResendsOnlyToNodeWithoutLaunch) {
  agents_report_had_ = true;
  StartOn({"a", "b"});
  Restart();
  had_ = {{"j", 1}};
  Attach("a", 1, {{"j", 1}});
  had_.clear();
  Attach("b", 1);
  EXPECT_TRUE(LaunchesSent("a").empty());
  EXPECT_EQ(LaunchesSent("b").size(), 1u);
  Ready("a", "j", 0);
  Ready("b", "j", 1);
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_RUNNING);
}

}  // namespace
}  // namespace fsdpd
