// The plan of a launch, and the nodes on which it fits.
#include "coordinator/testing/reconciler_case.h"

namespace fsdpd {
namespace {

using ::testing::HasSubstr;

// A planner whose step needs 100 bytes or, if the budget is smaller, exactly the budget, but at least 40,
// like recomputation.
class ReconcilerPlacingTest : public ReconcilerCase {
 protected:
  ReconcilerPlacingTest() {
    plan_ = [this](const v1::JobSpec& spec, int64_t offer) {
      offers_.push_back(offer);
      Plan plan;
      plan.resolved = WithDefaults(spec, nullptr);
      plan.memory.peak_bytes = offer == 0 ? 100 : std::clamp<int64_t>(offer, 40, 100);
      if (offer > 0 && offer < 40) plan.violations = {TooLarge()};
      return plan;
    };
  }
  static Violation TooLarge() {
    return {"memory_over_budget",
            ViolationLevel::kError,
            "resources.memory_budget_bytes",
            "a step needs 40 B",
            "",
            "",
            ""};
  }
  void AttachWith(const std::string& node, int64_t bytes) { Attach(node, 1, {}, bytes); }

  std::vector<int64_t> offers_;  // Budgets passed to the planner, in order.
};

TEST_F(ReconcilerPlacingTest, PlansStoresAndSendsLaunchToEveryNode) {
  AttachWith("a", 70);
  AttachWith("b", 90);
  Submit("j", 2, 1);
  EXPECT_EQ(offers_, std::vector<int64_t>{70});
  const v1::Job stored = *store_->Get("j");
  EXPECT_EQ(stored.state(), v1::JOB_STATE_STARTING);
  EXPECT_EQ(stored.memory_plan().peak_bytes(), 70);
  EXPECT_FALSE(stored.plan_provisional());
  for (const char* node : {"a", "b"}) {
    const auto launches = LaunchesSent(node);
    ASSERT_EQ(launches.size(), 1u);
    EXPECT_EQ(launches[0].spec().SerializeAsString(), stored.resolved().SerializeAsString());
    EXPECT_EQ(launches[0].memory_plan().peak_bytes(), 70);
  }
}

TEST_F(ReconcilerPlacingTest, EveryAttemptUsesPlanOfFirst) {
  AttachWith("a", 70);
  Submit("j", 1, 1, /*max_attempts=*/2);
  Exit("a", "j", 0, 1);
  Advance(absl::Seconds(1));
  Stopped("a", "j");
  AttachWith("b", 90);
  Advance(absl::Seconds(2));
  EXPECT_EQ(Job("j").attempt(), 2);
  EXPECT_EQ(Job("j").memory_plan().peak_bytes(), 70);
  EXPECT_EQ(offers_.size(), 1u);
}

TEST_F(ReconcilerPlacingTest, BudgetIsMemoryOfLargestSufficientNodes) {
  AttachWith("big", 95);
  AttachWith("middle", 80);
  AttachWith("small", 50);
  Submit("j", 2, 1);
  EXPECT_EQ(offers_, std::vector<int64_t>{80});
  EXPECT_THAT(Job("j").reason(), HasSubstr("big, middle"));
}

TEST_F(ReconcilerPlacingTest, OpenPlanWaitsForEnoughNodes) {
  AttachWith("a", 90);
  Submit("j", 2, 1);
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_QUEUED);
  EXPECT_TRUE(offers_.empty());
  AttachWith("b", 60);
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_STARTING);
  EXPECT_EQ(offers_, std::vector<int64_t>{60});
}

TEST_F(ReconcilerPlacingTest, ReportsPlanThatFitsNoNodeOncePerOffer) {
  AttachWith("a", 30);
  Submit("j", 1, 1);
  Advance(absl::Seconds(16));
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_QUEUED);
  EXPECT_THAT(Job("j").reason(), HasSubstr("does not fit the present nodes: "
                                           "resources.memory_budget_bytes: a step needs 40 B"));
  EXPECT_EQ(offers_, std::vector<int64_t>{30});
  AttachWith("b", 45);
  EXPECT_EQ(offers_, (std::vector<int64_t>{30, 45}));
  EXPECT_EQ(Job("j").placements(0).node(), "b");
}

TEST_F(ReconcilerPlacingTest, DoesNotLaunchStoredPlanThatNoLongerFits) {
  AttachWith("a", 90);
  Submit("first", 1, 1);
  Submit("j", 1, 1);
  EXPECT_EQ(Job("j").memory_plan().peak_bytes(), 90) << "planned although it must wait for the slot";
  Detach("a");
  outboxes_.erase("a");
  Advance(absl::Seconds(16));
  AttachWith("b", 60);
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_QUEUED);
  EXPECT_THAT(Job("j").reason(), HasSubstr("needs 1 node with 1 free cpu slot of 90 B; "));
  EXPECT_THAT(Job("j").reason(), HasSubstr("b offers 60 B per slot"));
  EXPECT_THAT(Job("j").reason(), HasSubstr("submit the job again"));
  AttachWith("c", 90);
  EXPECT_EQ(Job("j").placements(0).node(), "c");
}

TEST_F(ReconcilerPlacingTest, PlansJobStoredByOlderCoordinator) {
  Submit("j", 1, 1);
  Restart();
  EXPECT_FALSE(store_->Get("j")->has_resolved());
  AttachWith("a", 70);
  Advance(options_.reattach_grace + absl::Seconds(1));
  EXPECT_EQ(store_->Get("j")->state(), v1::JOB_STATE_STARTING);
  EXPECT_TRUE(store_->Get("j")->has_resolved());
}

TEST_F(ReconcilerPlacingTest, RestartDoesNotPlanAgain) {
  AttachWith("a", 70);
  Submit("first", 1, 1);
  Submit("j", 1, 1);
  Advance(absl::Seconds(2));
  Restart();
  Attach("a", 1, {{"first", 1}}, 70);
  EXPECT_EQ(offers_.size(), 2u);
  EXPECT_EQ(Job("j").memory_plan().peak_bytes(), 70);
}

TEST_F(ReconcilerPlacingTest, FreeSlotsExcludeHeldSlots) {
  uint32_t state = 1;
  const auto random = [&state] { return (state = state * 1664525 + 1013904223) >> 16; };
  const std::map<std::string, int> slots = {{"a", 4}, {"b", 3}, {"c", 1}};
  std::map<std::string, int> free = slots;
  for (const auto& [node, count] : slots) Attach(node, count);
  std::vector<std::string> held;
  for (int step = 0; step < 200; ++step) {
    const int ranks = 1 + static_cast<int>(random() % 3);
    const bool fits = free["a"] >= ranks || free["b"] >= ranks || free["c"] >= ranks;
    if (fits && random() % 2 == 0) {
      held.push_back(Submit("j" + std::to_string(step), 1, ranks));
      free[Job(held.back()).placements(0).node()] -= ranks;
    } else if (!held.empty()) {
      const size_t which = random() % held.size();
      const v1::Job::Placement placement = Job(held[which]).placements(0);
      for (int rank = 0; rank < placement.ranks(); ++rank) Exit(placement.node(), held[which], rank, 0);
      if (random() % 4 != 0) {  // Otherwise its agent has not confirmed the end: it holds its slots.
        Stopped(placement.node(), held[which]);
        free[placement.node()] += placement.ranks();
        held.erase(held.begin() + which);
      }
    }
    for (const NodeView& node : nodes_->Snapshot())
      ASSERT_EQ(node.free_slots, free[node.info.node()]) << node.info.node() << " in step " << step;
  }
}

// Regression: planned by a release without a memory margin, it fitted the card, and waited forever after an
// upgrade.
TEST_F(ReconcilerPlacingTest, PlacesStoredPlanWithoutMarginOnFittingCard) {
  constexpr int64_t kPeakBytes = int64_t{77} << 30, kProcessBytes = int64_t{2} << 30;
  for (const bool margin : {false, true}) {
    v1::Job job;
    job.set_id(margin ? "new" : "old");
    job.set_state(v1::JOB_STATE_QUEUED);
    job.set_revision(1);
    job.mutable_spec()->mutable_resources()->set_device(v1::DEVICE_CUDA);
    *job.mutable_resolved() = WithDefaults(job.spec(), nullptr);
    job.mutable_resolved()->mutable_resources()->set_memory_budget_bytes(kPeakBytes);
    job.mutable_memory_plan()->set_peak_bytes(kPeakBytes);
    job.set_memory_margin(margin);
    ASSERT_TRUE(store_->Insert(job).ok());
  }
  Restart();
  v1::Register info;
  info.set_node("a");
  info.set_instance("1");
  info.set_device(v1::DEVICE_CUDA);
  info.set_slots(2);
  info.set_memory_bytes_per_slot(kPeakBytes + kProcessBytes);
  const auto outbox = nodes_->Attach(info, "test", nullptr);
  ASSERT_TRUE(outbox.ok());
  outboxes_["a"] = *outbox;
  reconciler_->Attached(info, (*outbox)->stream_generation());
  Advance(options_.reattach_grace + absl::Seconds(5));
  EXPECT_EQ(StateOf("old"), v1::JOB_STATE_STARTING) << Job("old").reason();
  EXPECT_EQ(StateOf("new"), v1::JOB_STATE_QUEUED);
}

}  // namespace
}  // namespace fsdpd
