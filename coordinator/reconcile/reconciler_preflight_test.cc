// Preflight: nodes are measured before a job runs there.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/limits.h"
#include "coordinator/testing/full_disk.h"
#include "coordinator/testing/reconciler_case.h"

namespace fsdpd {
namespace {

using ::testing::HasSubstr;

class ReconcilerPreflightTest : public ReconcilerCase {
 protected:
  void SetUp() override {
    options_.preflight.devices = {v1::DEVICE_CPU};
    options_.preflight.floors = {{"cpu", "matmul_tflops", 0.5}};
    ReconcilerCase::SetUp();
  }

  // Preflight orders sent to a node, and launches.
  struct Orders {
    std::vector<v1::PreflightOrder> preflights;
    std::vector<v1::Launch> launches;
  };
  Orders OrdersTo(const std::string& node) {
    Orders orders;
    for (const v1::CoordinatorMessage& message : Sent(node)) {
      if (message.has_preflight()) orders.preflights.push_back(message.preflight());
      if (message.has_launch()) orders.launches.push_back(message.launch());
    }
    if (!orders.preflights.empty()) numbers_[node] = orders.preflights.back().number();
    return orders;
  }

  // The node's agent answers the newest order.
  void Answer(const std::string& node, double tflops, const std::string& error = "",
              const std::string& refused = "") {
    OrdersTo(node);
    v1::PreflightResult result;
    result.set_number(numbers_[node]);
    result.set_error(error);
    result.set_refused(refused);
    if (error.empty() && refused.empty()) {
      result.add_devices()->set_name("cpu");
      result.mutable_devices(0)->set_matmul_flops(tflops * 1e12);
    }
    reconciler_->OnReport(node, result);
    reconciler_->RunOnce();
  }
  void SendUnrequested(const std::string& node, int64_t number) {
    v1::PreflightResult result;
    result.set_number(number);
    result.add_devices()->set_name("cpu");
    result.mutable_devices(0)->set_matmul_flops(1e12);
    reconciler_->OnReport(node, result);
    reconciler_->RunOnce();
  }
  // Ends everything that runs there.
  void End(const std::string& node, const std::string& id, int code, int attempt = 1) {
    Exit(node, id, 0, code, attempt);
    Advance(absl::Seconds(1));
    Stopped(node, id, attempt);
  }
  void SubmitPreemptible(const std::string& id) {
    preemptible_ = true;
    Submit(id, 1, 1);
    preemptible_ = false;
  }
  std::string CordonOf(const std::string& node) {
    const auto cordon = reconciler_->cordons().Find(node);
    return cordon.has_value() ? cordon->reason() : "";
  }

  std::map<std::string, int64_t> numbers_;
};

TEST_F(ReconcilerPreflightTest, ReportsFullDiskAfterPreflight) {
  Attach("a", 1);
  Submit("j", 1, 1);
  ASSERT_EQ(StateOf("j"), v1::JOB_STATE_PREFLIGHT);
  std::optional<FullDisk> full(std::in_place);
  Answer("a", 0.9);
  Advance(absl::Seconds(2));
  v1::Job waits = Job("j");
  board_->AddWaiting(&waits);
  full.reset();
  EXPECT_EQ(waits.state(), v1::JOB_STATE_PREFLIGHT);
  EXPECT_EQ(waits.waiting().code(), v1::Job::Waiting::CODE_DISK);
  EXPECT_THAT(waits.reason(), HasSubstr("its launch cannot be stored; not on disk yet: "));
  Advance(absl::Seconds(2));
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_STARTING);
  EXPECT_EQ(Job("j").store_error(), "");
}

TEST_F(ReconcilerPreflightTest, LaunchesOnceAllNodesPassed) {
  Attach("a", 1);
  Attach("b", 1);
  Submit("j", 2, 1);
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_PREFLIGHT);
  EXPECT_THAT(Job("j").reason(), HasSubstr("a, b are measured first (preflight)"));
  EXPECT_EQ(Job("j").reserved_nodes_size(), 2);
  EXPECT_EQ(Job("j").attempt(), 0);
  Orders orders = OrdersTo("a");
  EXPECT_TRUE(orders.launches.empty());
  ASSERT_EQ(orders.preflights.size(), 1u);
  EXPECT_EQ(orders.preflights[0].limit_ms(), 120000);
  Answer("a", 1);
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_PREFLIGHT);
  Answer("b", 1);
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_STARTING);
  EXPECT_EQ(Job("j").attempt(), 1);
  EXPECT_EQ(Job("j").reserved_nodes_size(), 0);
  EXPECT_EQ(Job("j").placements_size(), 2);
  EXPECT_EQ(OrdersTo("a").launches.size(), 1u);
  EXPECT_EQ(OrdersTo("b").launches.size(), 1u);
}

TEST_F(ReconcilerPreflightTest, ResultIsValidForADayAcrossRestart) {
  Attach("a", 1);
  Submit("j", 1, 1);
  Answer("a", 1);
  End("a", "j", 0);
  Advance(absl::Seconds(2));  // Nodes are stored.
  Restart();
  Attach("a", 1);
  Submit("k", 1, 1);
  EXPECT_EQ(StateOf("k"), v1::JOB_STATE_STARTING);
  End("a", "k", 0);
  StallRank(absl::Hours(24));
  Advance(absl::Seconds(1));
  Submit("l", 1, 1);
  EXPECT_EQ(StateOf("l"), v1::JOB_STATE_PREFLIGHT);
}

TEST_F(ReconcilerPreflightTest, SlowNodeIsCordonedAndJobMoves) {
  Attach("a", 1);
  Attach("b", 1);
  Submit("j", 1, 1);
  ASSERT_EQ(Job("j").reserved_nodes(0).node(), "a");
  Answer("a", 0.4);
  EXPECT_EQ(CordonOf("a"), "preflight: device 0: product rate 0.4 TFLOP/s, floor 0.5");
  EXPECT_TRUE(reconciler_->cordons().Find("a")->automatic());
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_QUEUED);
  Advance(absl::Seconds(2));
  ASSERT_EQ(StateOf("j"), v1::JOB_STATE_PREFLIGHT);
  EXPECT_EQ(Job("j").reserved_nodes(0).node(), "b");
  Answer("b", 1);
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_STARTING);
}

TEST_F(ReconcilerPreflightTest, JobWaitsWithNumberUntilAccepted) {
  Attach("a", 1);
  Submit("j", 1, 1);
  Answer("a", 0.4);
  Advance(absl::Seconds(2));
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_QUEUED);
  EXPECT_THAT(Job("j").reason(), HasSubstr("product rate 0.4 TFLOP/s, floor 0.5"));
  ASSERT_TRUE(reconciler_->Uncordon("a").ok());
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_STARTING) << "an accepted result is not measured again";
}

// Regression: the next preflight passed, and the cordon counted as one for failed attempts from then on.
TEST_F(ReconcilerPreflightTest, FloorCordonSurvivesLaterPass) {
  Attach("a", 1);
  Submit("j", 1, 1);
  Answer("a", 0.4);
  ASSERT_TRUE(reconciler_->Preflight("a").ok());
  Answer("a", 1);
  Advance(2 * kHealthyFor);
  EXPECT_EQ(CordonOf("a"), "preflight: device 0: product rate 0.4 TFLOP/s, floor 0.5");
  ASSERT_TRUE(reconciler_->Uncordon("a").ok());
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_STARTING);
}

TEST_F(ReconcilerPreflightTest, FailedAttemptsCordonStaysAfterMissedFloor) {
  Attach("a", 1);
  Attach("b", 1);
  for (const char* id : {"x", "y"}) {
    Submit(id, 1, 1);
    if (StateOf(id) == v1::JOB_STATE_PREFLIGHT) Answer("a", 1);
    v1::RankExit refused;
    refused.set_exit_code(126);
    refused.mutable_error_class()->set_kind(v1::ErrorClass::KIND_NODE);
    ASSERT_EQ(Job(id).placements(0).node(), "a");
    ExitWith("a", id, 0, refused);
    Advance(absl::Seconds(1));
    Stopped("a", id);
  }
  ASSERT_TRUE(reconciler_->cordons().Find("a")->for_failed_attempts());
  ASSERT_TRUE(reconciler_->Preflight("a").ok());
  Answer("a", 0.4);
  Advance(2 * kHealthyFor);
  EXPECT_EQ(CordonOf("a"), "preflight: device 0: product rate 0.4 TFLOP/s, floor 0.5");
}

TEST_F(ReconcilerPreflightTest, FailedMeasurementCordonsButRefusedDoesNot) {
  Attach("a", 1);
  Submit("j", 1, 1);
  Answer("a", 0, "", "launch rejected: 1 rank needs as many slots, and 0 of 1 are free");
  EXPECT_EQ(CordonOf("a"), "");
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_QUEUED);
  EXPECT_THAT(Job("j").reason(), HasSubstr("a could not be measured"));
  Advance(absl::Seconds(2));
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_PREFLIGHT);
  Answer("a", 0, "device 0 was not done after 2 m 00 s");
  EXPECT_EQ(CordonOf("a"), "preflight: device 0 was not done after 2 m 00 s");
}

TEST_F(ReconcilerPreflightTest, UnansweredPreflightFailsUnlessAgentIsLost) {
  Attach("a", 1);
  Attach("b", 1);
  Submit("j", 2, 1);
  Advance(absl::Minutes(2) + absl::Seconds(10));
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_PREFLIGHT);
  Detach("b");
  outboxes_.erase("b");
  Advance(absl::Seconds(11));
  EXPECT_THAT(CordonOf("a"), HasSubstr("no result within 2 m 20 s"));
  EXPECT_EQ(CordonOf("b"), "");
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_QUEUED);
}

TEST_F(ReconcilerPreflightTest, DisconnectedNodeQueuesJobAgain) {
  Attach("a", 1);
  Submit("j", 1, 1);
  Detach("a");
  outboxes_.clear();
  Advance(absl::Milliseconds(kAgentLostAfterMs) + absl::Seconds(2));
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_QUEUED);
  Attach("a", 1);
  Advance(absl::Seconds(2));
  ASSERT_EQ(StateOf("j"), v1::JOB_STATE_PREFLIGHT);
  Answer("a", 1);
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_STARTING);
}

TEST_F(ReconcilerPreflightTest, WaitsForReconnectedRanksOfLastAttempt) {
  Attach("a", 1);
  Submit("j", 1, 1, /*max_attempts=*/2);
  Answer("a", 1);
  Ready("a", "j", 0);
  Detach("a");
  outboxes_.clear();
  Advance(absl::Seconds(20));
  Attach("b", 1);
  ASSERT_EQ(StateOf("j"), v1::JOB_STATE_PREFLIGHT);
  Attach("a", 1, {{"j", 1}});
  EXPECT_EQ(StopsSent("a").size(), 1u);
  Answer("b", 1);
  Advance(absl::Seconds(2));
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_PREFLIGHT) << "two of its attempts would run";
  EXPECT_EQ(Job("j").reason(), "waits until the remaining ranks of attempt 1 on a have ended");
  EXPECT_TRUE(OrdersTo("b").launches.empty());
  Stopped("a", "j");
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_STARTING);
  EXPECT_EQ(Job("j").attempt(), 2);
  EXPECT_EQ(OrdersTo("b").launches.size(), 1u);
}

TEST_F(ReconcilerPreflightTest, ReconnectedAgentContinuesOrHasLostPreflight) {
  Attach("a", 1);
  Submit("j", 1, 1);
  OrdersTo("a");
  Detach("a");
  Attach("a", 1, {{"preflight", 77}});
  Advance(absl::Seconds(5));
  EXPECT_TRUE(StopsSent("a").empty()) << "it belongs to no attempt, and continues";
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_PREFLIGHT);
  Detach("a");
  Attach("a", 1);  // Another agent of its name, without ranks.
  Advance(absl::Seconds(2));
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_QUEUED);
  Advance(absl::Seconds(2));
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_PREFLIGHT) << "from the beginning";
}

TEST_F(ReconcilerPreflightTest, RestartQueuesJobAndAcceptsResult) {
  Attach("a", 1);
  Submit("j", 1, 1);
  OrdersTo("a");
  Restart();
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_PREFLIGHT);
  Attach("a", 1, {{"preflight", 77}});
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_QUEUED);
  Advance(absl::Seconds(20));
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_QUEUED);
  EXPECT_THAT(Job("j").reason(), HasSubstr("held by its preflight"));
  Answer("a", 1);
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_STARTING);
  EXPECT_TRUE(OrdersTo("a").preflights.empty());
}

TEST_F(ReconcilerPreflightTest, CancelAndPauseAreImmediateAndPreflightContinues) {
  Attach("a", 2);
  Submit("j", 1, 1);
  OrdersTo("a");
  ASSERT_TRUE(Pause("j").ok());
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_PAUSED);
  EXPECT_EQ(Job("j").reserved_nodes_size(), 0);
  Submit("k", 1, 1);
  EXPECT_EQ(StateOf("k"), v1::JOB_STATE_QUEUED);
  ASSERT_TRUE(Cancel("k").ok());
  EXPECT_EQ(StateOf("k"), v1::JOB_STATE_CANCELLED);
  EXPECT_TRUE(StopsSent("a").empty());
  Answer("a", 1);
  ASSERT_TRUE(Resume("j").ok());
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_STARTING) << "with the results from the meantime";
  Submit("l", 1, 1);
  EXPECT_EQ(StateOf("l"), v1::JOB_STATE_STARTING);
}

TEST_F(ReconcilerPreflightTest, CancelInPreflightEndsWithoutAttempt) {
  Attach("a", 1);
  Submit("j", 1, 1);
  ASSERT_TRUE(Cancel("j").ok());
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_CANCELLED);
  EXPECT_EQ(Job("j").attempt(), 0);
}

TEST_F(ReconcilerPreflightTest, ReservesSlotsDuringPreflight) {
  Attach("a", 2);
  Attach("b", 2);
  Submit("j", 2, 1);
  Submit("k", 1, 2);
  EXPECT_EQ(StateOf("k"), v1::JOB_STATE_QUEUED);
  EXPECT_THAT(Job("k").reason(), HasSubstr("held by its preflight, j"));
  Answer("a", 1);
  EXPECT_EQ(StateOf("k"), v1::JOB_STATE_QUEUED) << "one slot of a is held for j";
  Submit("l", 1, 1);
  Answer("b", 1);
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_STARTING);
}

TEST_F(ReconcilerPreflightTest, RestartInPlaceAndSharedNodeSkipPreflight) {
  Attach("a", 2);
  Submit("j", 1, 1, /*max_attempts=*/2);
  Answer("a", 1);
  StallRank(absl::Hours(25));
  Advance(absl::Seconds(1));
  Submit("k", 1, 1);
  EXPECT_EQ(StateOf("k"), v1::JOB_STATE_STARTING) << "j runs there";
  ASSERT_TRUE(Cancel("k").ok());
  Exit("a", "k", 0, 143);
  Stopped("a", "k");
  Exit("a", "j", 0, 1);
  Advance(absl::Seconds(1));
  Stopped("a", "j");
  Advance(absl::Seconds(3));
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_STARTING);
  EXPECT_EQ(Job("j").attempt(), 2);
}

TEST_F(ReconcilerPreflightTest, UserMayMeasureIdleNode) {
  EXPECT_TRUE(absl::IsNotFound(reconciler_->Preflight("a")));
  Attach("a", 1);
  ASSERT_TRUE(reconciler_->Preflight("a").ok());
  ASSERT_TRUE(reconciler_->Preflight("a").ok());
  EXPECT_EQ(OrdersTo("a").preflights.size(), 1u);
  v1::Node shown;
  shown.set_name("a");
  reconciler_->preflights().MarkIn(&shown);
  EXPECT_TRUE(shown.in_preflight());
  Answer("a", 0.1);
  reconciler_->preflights().MarkIn(&shown);
  EXPECT_FALSE(shown.in_preflight());
  EXPECT_EQ(shown.preflight().violations_size(), 1);
  EXPECT_NE(CordonOf("a"), "");
  ASSERT_TRUE(reconciler_->Uncordon("a").ok());
  Submit("j", 1, 1);
  ASSERT_EQ(StateOf("j"), v1::JOB_STATE_STARTING);
  EXPECT_THAT(std::string(reconciler_->Preflight("a").message()), HasSubstr("a is in use by j"));
  agents_measure_ = false;
  Attach("old", 1);
  EXPECT_THAT(std::string(reconciler_->Preflight("old").message()), HasSubstr("does not support preflight"));
  Submit("k", 1, 1);
  EXPECT_EQ(StateOf("k"), v1::JOB_STATE_STARTING) << "a measurement that cannot start is not awaited";
}

TEST_F(ReconcilerPreflightTest, PreflightJobIsPreemptedWithoutLaunch) {
  Attach("a", 1);
  Advance(options_.reattach_grace + absl::Seconds(1));
  SubmitPreemptible("low");
  ASSERT_EQ(StateOf("low"), v1::JOB_STATE_PREFLIGHT);
  priority_ = 5;
  Submit("high", 1, 1);
  EXPECT_EQ(StateOf("low"), v1::JOB_STATE_QUEUED);
  EXPECT_THAT(
      Job("low").events(),
      ::testing::Contains(::testing::Property(
          &v1::Job::Event::message,
          "preempted by job high, of priority 5, before its launch; it resumes when slots are free")));
  Advance(absl::Seconds(5));
  EXPECT_EQ(StateOf("low"), v1::JOB_STATE_QUEUED);
  Answer("a", 1);
  EXPECT_EQ(StateOf("high"), v1::JOB_STATE_STARTING);
  EXPECT_EQ(StateOf("low"), v1::JOB_STATE_QUEUED);
  EXPECT_EQ(Job("low").attempt(), 0);
  ASSERT_TRUE(Cancel("high").ok());
  Exit("a", "high", 0, 143);
  Stopped("a", "high");
  EXPECT_EQ(StateOf("low"), v1::JOB_STATE_STARTING);
}

TEST_F(ReconcilerPreflightTest, NonPreemptibleJobKeepsSlotsInPreflight) {
  Attach("a", 1);
  Advance(options_.reattach_grace + absl::Seconds(1));
  Submit("low", 1, 1);
  priority_ = 5;
  Submit("high", 1, 1);
  Advance(absl::Seconds(5));
  EXPECT_EQ(StateOf("low"), v1::JOB_STATE_PREFLIGHT);
  Answer("a", 1);
  EXPECT_EQ(StateOf("low"), v1::JOB_STATE_STARTING);
}

TEST_F(ReconcilerPreflightTest, BackfilledJobInPreflightReturnsSlots) {
  Attach("a", 1);
  Advance(options_.reattach_grace + absl::Seconds(1));
  Submit("one", 1, 1);
  Answer("a", 1);
  ASSERT_EQ(StateOf("one"), v1::JOB_STATE_STARTING);
  Attach("b", 1);
  Submit("two", 2, 1);
  SubmitPreemptible("lent");
  ASSERT_EQ(StateOf("lent"), v1::JOB_STATE_PREFLIGHT);
  EXPECT_TRUE(Job("lent").backfilled());
  End("a", "one", 0);
  EXPECT_EQ(StateOf("lent"), v1::JOB_STATE_QUEUED);
  EXPECT_FALSE(Job("lent").backfilled());
  EXPECT_EQ(StateOf("two"), v1::JOB_STATE_QUEUED) << "b is still being measured";
  Answer("b", 1);
  EXPECT_EQ(StateOf("two"), v1::JOB_STATE_STARTING);
  EXPECT_EQ(Job("lent").attempt(), 0);
}

TEST_F(ReconcilerPreflightTest, DoesNotPreemptForNodeUnderPreflight) {
  Attach("a", 1);
  Advance(options_.reattach_grace + absl::Seconds(1));
  SubmitPreemptible("low");
  Answer("a", 1);
  Attach("b", 1);
  ASSERT_TRUE(reconciler_->Preflight("b").ok());
  priority_ = 5;
  Submit("high", 1, 1);
  Advance(absl::Seconds(5));
  EXPECT_EQ(StateOf("low"), v1::JOB_STATE_STARTING);
  EXPECT_EQ(StateOf("high"), v1::JOB_STATE_QUEUED);
  Answer("b", 1);
  EXPECT_EQ(StateOf("high"), v1::JOB_STATE_STARTING);
  EXPECT_EQ(StateOf("low"), v1::JOB_STATE_STARTING);
}

TEST_F(ReconcilerPreflightTest, AcceptanceSurvivesImmediateRestart) {
  Attach("a", 1);
  Submit("j", 1, 1);
  Answer("a", 0.4);
  ASSERT_NE(CordonOf("a"), "");
  ASSERT_TRUE(Cancel("j").ok());
  ASSERT_TRUE(reconciler_->Uncordon("a").ok());
  Restart();
  Attach("a", 1);
  Submit("k", 1, 1);
  EXPECT_EQ(StateOf("k"), v1::JOB_STATE_STARTING);
}

TEST_F(ReconcilerPreflightTest, UnstoredUncordonChangesNothing) {
  Attach("a", 1);
  Submit("j", 1, 1);
  Answer("a", 0.4);
  std::optional<FullDisk> full(std::in_place);
  const absl::Status lifted = reconciler_->Uncordon("a");
  full.reset();
  EXPECT_FALSE(lifted.ok());
  EXPECT_NE(CordonOf("a"), "");
  EXPECT_FALSE(reconciler_->preflights().Find("a")->accepted());
}

// Regression: a node that was never measured could report that it passed, and each result was a log line.
TEST_F(ReconcilerPreflightTest, RejectsUnrequestedResult) {
  Attach("a", 1);
  Advance(options_.reattach_grace + absl::Seconds(1));
  for (int number = 1; number <= 3; ++number) SendUnrequested("a", number);
  EXPECT_FALSE(reconciler_->preflights().Find("a").has_value());
  Submit("j", 1, 1);
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_PREFLIGHT);
}

// Regression: its launch was stored without the nodes' results, which were resent and dropped.
TEST_F(ReconcilerPreflightTest, AcceptsResultRequestedBeforeRestart) {
  Attach("a", 1);
  Attach("b", 1);
  ASSERT_TRUE(reconciler_->Preflight("a").ok());
  OrdersTo("a");
  Restart();
  for (const char* node : {"a", "b"}) Attach(node, 1);
  SendUnrequested("b", numbers_["a"]);
  EXPECT_FALSE(reconciler_->preflights().Find("b").has_value());
  Answer("a", 1);
  EXPECT_TRUE(reconciler_->preflights().Find("a").has_value());
}

TEST_F(ReconcilerPreflightTest, AcceptsResultOfNodeLostDuringPreflight) {
  Attach("a", 1);
  ASSERT_TRUE(reconciler_->Preflight("a").ok());
  OrdersTo("a");
  Detach("a");
  outboxes_.clear();
  Advance(absl::Milliseconds(kAgentLostAfterMs) + absl::Seconds(2));
  Attach("a", 1, {{"preflight", 77}});
  EXPECT_TRUE(StopsSent("a").empty());
  Answer("a", 1);
  EXPECT_TRUE(reconciler_->preflights().Find("a").has_value());
}

// Regression: it held the node's slots forever, and the next result counted, whatever it was.
TEST_F(ReconcilerPreflightTest, StopsUnorderedPreflightAndRejectsResult) {
  for (const bool restarted : {false, true}) {
    Attach("a", 1);
    Advance(absl::Seconds(2));
    if (restarted) Restart();
    Attach("a", 1, {{"preflight", 1}, {"preflight", 2}});
    const std::vector<v1::Stop> stops = StopsSent("a");
    ASSERT_EQ(stops.size(), 2u);
    EXPECT_EQ(stops[0].job_id(), "preflight");
    EXPECT_EQ(stops[0].reason(), "the coordinator did not request this preflight");
    SendUnrequested("a", 1);
    EXPECT_FALSE(reconciler_->preflights().Find("a").has_value());
    v1::Node shown;
    shown.set_name("a");
    reconciler_->preflights().MarkIn(&shown);
    EXPECT_FALSE(shown.in_preflight());
    Advance(absl::Seconds(12));
    EXPECT_TRUE(reconciler_->Preflight("a").ok());
    Answer("a", 0, "", "the preflight was stopped before it completed");
  }
}

TEST_F(ReconcilerPreflightTest, AcceptsRepeatedResultOnce) {
  Attach("a", 1);
  Submit("j", 1, 1);
  Answer("a", 0.4);
  ASSERT_TRUE(reconciler_->Uncordon("a").ok());
  Answer("a", 0.4);
  EXPECT_EQ(CordonOf("a"), "");
}

}  // namespace
}  // namespace fsdpd
