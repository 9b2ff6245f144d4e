#include "coordinator/reconcile/preflight_runner.h"

#include "coordinator/testing/reconcile_parts.h"

namespace fsdpd {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class PreflightRunnerTest : public ReconcileParts {
 protected:
  void SetUp() override {
    Settle();
    Attach("a", 1, /*measures=*/true);
  }
  LiveJob* Begin(const std::string& id) {
    LiveJob* live = Submit(QueuedJob(id));
    EXPECT_TRUE(preflights_.Begin(live, On({"a"}), /*backfilled=*/false).ok());
    return live;
  }
  int64_t OrderedNumber() {
    const std::vector<v1::CoordinatorMessage> sent = Sent("a");
    return sent.empty() ? 0 : sent.back().preflight().number();
  }
  static v1::PreflightResult Result(int64_t number, double tflops) {
    v1::PreflightResult result;
    result.set_number(number);
    result.add_devices()->set_name("cpu");
    result.mutable_devices(0)->set_matmul_flops(tflops * 1e12);
    return result;
  }
  void Measured(double tflops) {
    preflights_.Measure("a");
    preflights_.OnResult("a", Result(OrderedNumber(), tflops));
  }
  std::string CordonReason() { return cordons_.Find("a").value_or(v1::Cordon()).reason(); }
};

TEST_F(PreflightRunnerTest, MeasuresBeforeTheLaunchAndThenOnceADay) {
  LiveJob* live = Begin("j");
  EXPECT_EQ(live->job.state(), v1::JOB_STATE_PREFLIGHT);
  EXPECT_EQ(ordered_preflights_, 1);
  preflights_.OnResult("a", Result(OrderedNumber(), 1));
  preflights_.Advance();
  EXPECT_EQ(live->job.state(), v1::JOB_STATE_STARTING);
  Fail(live);
  ASSERT_TRUE(table_.GiveUp(live, "failed").ok());
  EXPECT_EQ(Begin("k")->job.state(), v1::JOB_STATE_STARTING) << "measured today";
}

TEST_F(PreflightRunnerTest, RetryOnTheSameNodeUsesAnOldMeasurement) {
  Measured(1);
  LiveJob* live = Begin("j");
  Fail(live);
  clock_.StepWall(absl::Hours(25));
  ASSERT_TRUE(preflights_.Begin(live, On({"a"}), /*backfilled=*/false).ok());
  EXPECT_EQ(live->job.state(), v1::JOB_STATE_STARTING);
  Fail(live);
  EXPECT_EQ(Begin("k")->job.state(), v1::JOB_STATE_PREFLIGHT) << "another job";
}

TEST_F(PreflightRunnerTest, NodeThatRunsRanksIsNotMeasured) {
  Attach("a", 2, /*measures=*/true);
  Run(QueuedJob("runs"), "a");
  EXPECT_EQ(Begin("j")->job.state(), v1::JOB_STATE_STARTING);
}

TEST_F(PreflightRunnerTest, TakesOnlyTheOrderedResult) {
  preflights_.Measure("a");
  const int64_t number = OrderedNumber();
  preflights_.OnResult("a", Result(number - 1, 1));
  preflights_.OnResult("a", Result(number + 1, 1));
  EXPECT_TRUE(preflights_.IsMeasuring("a"));
  preflights_.OnResult("a", Result(number, 1));
  EXPECT_FALSE(preflights_.IsMeasuring("a"));
  preflights_.OnResult("a", Result(number, 0.1));
  EXPECT_EQ(CordonReason(), "") << "a repeated result changes nothing";
}

TEST_F(PreflightRunnerTest, ContinuesMeasurementOfThePreviousProcess) {
  v1::ListNodesResponse nodes;
  nodes.add_nodes()->set_name("a");
  nodes.mutable_nodes(0)->set_in_preflight(true);
  nodes.mutable_nodes(0)->mutable_preflight()->mutable_result()->set_number(7);
  preflights_.Load(nodes);
  preflights_.OnResult("a", Result(7, 1));
  EXPECT_TRUE(preflights_.IsMeasuring("a")) << "the result of an earlier measurement";
  preflights_.OnResult("a", Result(8, 1));
  EXPECT_FALSE(preflights_.IsMeasuring("a"));
}

TEST_F(PreflightRunnerTest, CordonsNodeBelowAFloorButKeepsAUsersCordon) {
  Measured(0.4);
  EXPECT_THAT(CordonReason(), HasSubstr("preflight: "));
  EXPECT_TRUE(cordons_.Find("a")->automatic());
  v1::Cordon by_user;
  by_user.set_reason("new disk");
  ASSERT_TRUE(cordons_.Set("a", by_user).ok());
  Measured(0.4);
  EXPECT_EQ(CordonReason(), "new disk");
}

TEST_F(PreflightRunnerTest, ConnectedAgentThatDoesNotAnswerIsCordoned) {
  preflights_.Measure("a");
  Advance(absl::Seconds(139));
  preflights_.Advance();
  EXPECT_EQ(CordonReason(), "");
  Advance(absl::Seconds(1));
  preflights_.Advance();
  EXPECT_THAT(CordonReason(), HasSubstr("no result within 2 m 20 s"));
}

TEST_F(PreflightRunnerTest, LostAgentIsNotJudged) {
  LiveJob* live = Begin("j");
  Lose("a");
  preflights_.Advance();
  EXPECT_EQ(live->job.state(), v1::JOB_STATE_QUEUED);
  EXPECT_GT(live->not_before, clock_.Now());
  EXPECT_TRUE(preflights_.IsMeasuring("a")) << "it may return with its result";
  Advance(absl::Seconds(140));
  preflights_.Advance();
  EXPECT_FALSE(preflights_.IsMeasuring("a"));
  EXPECT_EQ(CordonReason(), "");
}

TEST_F(PreflightRunnerTest, AgentThatReconnectsWithoutItHasTwoSecondsForTheResult) {
  preflights_.Measure("a");
  EXPECT_TRUE(preflights_.OnAttached("a", /*still=*/true));
  Advance(absl::Seconds(3));
  preflights_.Advance();
  EXPECT_TRUE(preflights_.IsMeasuring("a"));
  EXPECT_FALSE(preflights_.OnAttached("a", /*still=*/false));
  Advance(absl::Seconds(1));
  preflights_.Advance();
  EXPECT_TRUE(preflights_.IsMeasuring("a"));
  Advance(absl::Seconds(1));
  preflights_.Advance();
  EXPECT_FALSE(preflights_.IsMeasuring("a"));
}

TEST_F(PreflightRunnerTest, PassedNodesWaitForTheRestOfTheLastAttempt) {
  LiveJob* live = Begin("j");
  preflights_.OnResult("a", Result(OrderedNumber(), 1));
  Attach("b");
  book_.AddLeftover({"j", 1}, "b", {1000, "ended"}, /*placed=*/true, absl::InfiniteFuture());
  preflights_.Advance();
  EXPECT_EQ(live->job.state(), v1::JOB_STATE_PREFLIGHT);
  EXPECT_THAT(live->job.reason(), HasSubstr("remaining ranks of attempt 1 on b"));
  book_.Find(AttemptRef{"j", 1})->TakeStopped("b");
  preflights_.Advance();
  EXPECT_EQ(live->job.state(), v1::JOB_STATE_STARTING);
}

}  // namespace
}  // namespace fsdpd
