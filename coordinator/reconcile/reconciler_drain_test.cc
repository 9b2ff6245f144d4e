// Drain: which jobs leave a node, where they continue, and what survives a restart of the coordinator.
#include "coordinator/testing/reconciler_case.h"

namespace fsdpd {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

class ReconcilerDrainTest : public ReconcilerCase {
 protected:
  absl::Status Drain(const std::string& node, bool force = false) {
    return reconciler_->Drain(node, "gets a new disk", 60'000, force);
  }
  bool SaidEmpty(const std::string& node) {
    return reconciler_->cordons().Find(node).value_or(v1::Cordon()).drain().empty_unix_nanos() > 0;
  }
  void RunSaving(const std::string& id, const std::string& node) {
    Submit(id, 1, 1, /*max_attempts=*/1, "/runs/" + id);
    Ready(node, id, 0);
    v1::RankUpdate update = Update(id, 0);
    update.mutable_step()->set_step(9);
    reconciler_->OnReport(node, update, 0);
    reconciler_->RunOnce();
  }
  void Saved(const std::string& node, const std::string& id, int64_t step) {
    v1::RankUpdate update = Update(id, 0);
    update.mutable_saved()->set_step(step);
    update.mutable_saved()->set_path("/runs/" + id);
    reconciler_->OnReport(node, update, 0);
    reconciler_->RunOnce();
  }
  void Left(const std::string& node, const std::string& id) {
    v1::RankExit exit;
    exit.set_exit_code(143);
    exit.set_cancelled(true);
    ExitWith(node, id, 0, exit);
    Stopped(node, id);
  }
  std::vector<v1::EventKind> KindsOf(const EventQuery& query) {
    std::vector<v1::EventKind> kinds;
    const absl::StatusOr<EventPage> page = store_->events().Read(query);
    EXPECT_TRUE(page.ok()) << page.status();
    for (const v1::Event& event : page->events) kinds.push_back(event.kind());
    return kinds;
  }
};

TEST_F(ReconcilerDrainTest, JobsSaveAndMoveWithoutCountingAttempt) {
  Attach("a", 1);
  RunSaving("j", "a");
  Attach("b", 1);
  Sent("a");
  ASSERT_TRUE(Drain("a").ok());
  reconciler_->RunOnce();
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_PAUSING);
  EXPECT_THAT(Job("j").reason(), HasSubstr("node a is drained: the ranks save and exit"));
  const std::vector<v1::Stop> stops = StopsSent("a");
  ASSERT_THAT(stops, SizeIs(1));
  EXPECT_TRUE(stops[0].save());
  EXPECT_EQ(stops[0].grace_ms(), 60'000);
  EXPECT_FALSE(SaidEmpty("a"));
  Saved("a", "j", 9);
  Left("a", "j");
  Advance(absl::Seconds(2));
  EXPECT_TRUE(SaidEmpty("a"));
  ASSERT_EQ(StateOf("j"), v1::JOB_STATE_STARTING);
  EXPECT_EQ(Job("j").placements(0).node(), "b");
  EXPECT_EQ(Job("j").attempt(), 2);
  EXPECT_EQ(Job("j").drains_since_checkpoint() + Job("j").attempts_before_checkpoint(), 1)
      << "none of the allowed attempts is used";
  EventQuery of_a;
  of_a.node = "a";
  EXPECT_THAT(KindsOf(of_a),
              ElementsAre(v1::EVENT_KIND_LAUNCHED, v1::EVENT_KIND_DRAINING, v1::EVENT_KIND_DRAINED,
                          v1::EVENT_KIND_RANKS_EXITED, v1::EVENT_KIND_NODE_DRAINED));
  EventQuery of_j;
  of_j.job = "j";
  EXPECT_THAT(KindsOf(of_j), Contains(v1::EVENT_KIND_DRAINED));
}

TEST_F(ReconcilerDrainTest, JobWaitsWithoutSlotsAndResumesAfterUncordon) {
  Attach("a", 1);
  RunSaving("j", "a");
  ASSERT_TRUE(Drain("a").ok());
  reconciler_->RunOnce();
  Saved("a", "j", 9);
  Left("a", "j");
  Advance(absl::Seconds(2));
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_QUEUED);
  EXPECT_TRUE(SaidEmpty("a"));
  ASSERT_TRUE(reconciler_->Uncordon("a").ok());
  Advance(absl::Seconds(1));
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_STARTING);
}

TEST_F(ReconcilerDrainTest, NamesJobThatWouldLoseAllSteps) {
  RunOn({"a"});
  const absl::Status refused = Drain("a");
  EXPECT_TRUE(absl::IsFailedPrecondition(refused));
  EXPECT_THAT(refused.message(), HasSubstr("j writes no checkpoints"));
  EXPECT_FALSE(reconciler_->cordons().Find("a").has_value()) << "nothing was changed";
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_RUNNING);
  ASSERT_TRUE(Drain("a", /*force=*/true).ok());
  reconciler_->RunOnce();
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_PAUSING);
  Left("a", "j");
  Advance(absl::Seconds(2));
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_QUEUED);
}

TEST_F(ReconcilerDrainTest, DrainContinuesAfterRestart) {
  Attach("a", 2);
  RunSaving("j", "a");
  ASSERT_TRUE(Drain("a").ok());
  Restart();
  Attach("a", 2, {{"j", 1}});
  reconciler_->RunOnce();
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_PAUSING);
  EXPECT_FALSE(SaidEmpty("a"));
  Left("a", "j");
  Advance(absl::Seconds(2));
  EXPECT_TRUE(SaidEmpty("a"));
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_QUEUED);
}

TEST_F(ReconcilerDrainTest, LostNodeIsNotEmptyUntilAgentReports) {
  Attach("a", 1);
  RunSaving("j", "a");
  Attach("b", 1);
  ASSERT_TRUE(Drain("a").ok());
  Detach("a");
  for (int second = 0; second < 120; ++second) {
    clock_.Advance(absl::Seconds(1));
    nodes_->Touch("b", outboxes_.at("b")->stream_generation());
    reconciler_->RunOnce();
  }
  ASSERT_EQ(StateOf("j"), v1::JOB_STATE_STARTING);
  EXPECT_EQ(Job("j").placements(0).node(), "b");
  EXPECT_FALSE(SaidEmpty("a")) << "its ranks may still run there";
  Attach("a", 1, {{"j", 1}});
  reconciler_->RunOnce();
  EXPECT_FALSE(SaidEmpty("a"));
  Stopped("a", "j");
  Advance(absl::Seconds(1));
  EXPECT_TRUE(SaidEmpty("a"));
}

TEST_F(ReconcilerDrainTest, NodeIsNotEmptyWhenUnknownRanksAppear) {
  Attach("a", 1);
  ASSERT_TRUE(Drain("a").ok());
  reconciler_->RunOnce();
  ASSERT_TRUE(SaidEmpty("a"));
  Detach("a");
  Attach("a", 1, {{"unknown", 1}});
  EXPECT_FALSE(SaidEmpty("a"));
  Stopped("a", "unknown");
  Advance(absl::Seconds(1));
  EXPECT_TRUE(SaidEmpty("a"));
}

// Regression: the node was reported as empty, and the job's lost steps were not reported.
TEST_F(ReconcilerDrainTest, FailedSaveIsRecordedBeforeNodeIsEmpty) {
  Attach("a", 1);
  RunSaving("j", "a");
  Saved("a", "j", 4);
  ASSERT_TRUE(Drain("a").ok());
  reconciler_->RunOnce();
  v1::RankUpdate failed = Update("j", 0);
  failed.mutable_saved()->set_step(9);
  failed.mutable_saved()->set_error("No space left on device");
  reconciler_->OnReport("a", failed, 0);
  Left("a", "j");
  Advance(absl::Seconds(2));
  EventQuery of_a;
  of_a.node = "a";
  const Events events = store_->events().Read(of_a)->events;
  std::vector<v1::EventKind> kinds;
  std::string left;
  for (const v1::Event& event : events) {
    kinds.push_back(event.kind());
    if (event.kind() == v1::EVENT_KIND_RANKS_EXITED) left = event.message();
  }
  EXPECT_THAT(kinds, ElementsAre(v1::EVENT_KIND_LAUNCHED, v1::EVENT_KIND_DRAINING, v1::EVENT_KIND_DRAINED,
                                 v1::EVENT_KIND_RANKS_EXITED, v1::EVENT_KIND_NODE_DRAINED));
  EXPECT_THAT(left,
              HasSubstr("paused after step 4, which is saved; 5 steps after it are lost: the checkpoint "
                        "of step 9 could not be written: No space left on device"));
}

// Regression: agents report ended ranks too to a new coordinator, so each restart repeated the drain's event.
TEST_F(ReconcilerDrainTest, RestartOrNewDrainDoesNotRepeatEvent) {
  Attach("a", 1);
  RunSaving("j", "a");
  ASSERT_TRUE(Drain("a").ok());
  reconciler_->RunOnce();
  Saved("a", "j", 9);
  Left("a", "j");
  Advance(absl::Seconds(2));
  EventQuery of_a;
  of_a.node = "a";
  const size_t told = KindsOf(of_a).size();
  const int64_t since = reconciler_->cordons().Find("a")->drain().empty_unix_nanos();
  Restart();
  Attach("a", 1, {{"j", 1}});
  EXPECT_FALSE(SaidEmpty("a"));
  Stopped("a", "j");
  Advance(absl::Seconds(1));
  EXPECT_EQ(reconciler_->cordons().Find("a")->drain().empty_unix_nanos(), since);
  ASSERT_TRUE(Drain("a").ok());
  ASSERT_TRUE(Drain("a", /*force=*/true).ok());
  reconciler_->RunOnce();
  EXPECT_THAT(KindsOf(of_a), SizeIs(told));
}

TEST_F(ReconcilerDrainTest, NodeThatStaysFullIsReportedWithItsTime) {
  Attach("a", 1);
  ASSERT_TRUE(Drain("a").ok());
  reconciler_->RunOnce();
  Detach("a");
  Attach("a", 1, {{"unknown", 1}});
  Advance(absl::Seconds(20));
  EventQuery of_a;
  of_a.node = "a";
  EXPECT_THAT(KindsOf(of_a),
              ElementsAre(v1::EVENT_KIND_DRAINING, v1::EVENT_KIND_NODE_DRAINED, v1::EVENT_KIND_DRAINING));
  const v1::Event again = store_->events().Read(of_a)->events.back();
  EXPECT_GT(again.unix_nanos(), absl::ToUnixNanos(clock_.Wall() - absl::Seconds(10)));
}

TEST_F(ReconcilerDrainTest, SecondDrainMayChangeReason) {
  RunOn({"a"});
  ASSERT_TRUE(Drain("a", /*force=*/true).ok());
  ASSERT_TRUE(reconciler_->Drain("a", "gets a new fan", 60'000, /*force=*/true).ok());
  EXPECT_EQ(reconciler_->cordons().Find("a")->reason(), "gets a new fan");
}

TEST_F(ReconcilerDrainTest, IdleNodeIsEmptyImmediatelyAndUnknownIsNotFound) {
  Attach("a", 1);
  EXPECT_TRUE(absl::IsNotFound(Drain("nobody")));
  ASSERT_TRUE(Drain("a").ok());
  reconciler_->RunOnce();
  EXPECT_TRUE(SaidEmpty("a"));
  ASSERT_TRUE(reconciler_->Cordon("a", "another word").ok());
  EXPECT_TRUE(SaidEmpty("a"));
}

}  // namespace
}  // namespace fsdpd
