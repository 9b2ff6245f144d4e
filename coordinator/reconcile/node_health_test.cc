#include "coordinator/reconcile/node_health.h"

#include "coordinator/testing/reconcile_parts.h"

namespace fsdpd {
namespace {

class NodeHealthTest : public ReconcileParts {
 protected:
  void SetUp() override {
    Settle();
    Attach("a");
    Attach("b");
  }
  // An attempt of another job failed because of the node.
  void FailOn(const std::string& node) {
    Advance(absl::Seconds(1));
    v1::Job job;
    job.set_id(absl::StrCat("j", ++failures_));
    job.set_attempt(1);
    job.set_start_unix_nanos(absl::ToUnixNanos(clock_.Wall()));
    job.mutable_failure()->set_attempt(1);
    job.mutable_failure()->set_node(node);
    job.mutable_failure()->set_node_at_fault(true);
    health_.OnAttemptOver(job, JobEvent::kRetry);
  }
  void CordonA() {
    FailOn("a");
    FailOn("a");
    ASSERT_TRUE(IsCordoned("a"));
  }
  bool IsCordoned(const std::string& node) { return cordons_.Find(node).has_value(); }
  void AdvanceAndUncordon(absl::Duration by) {
    Advance(by);
    health_.UncordonHealthy();
  }

  int failures_ = 0;
};

TEST_F(NodeHealthTest, CordonsANodeAfterTwoFailures) {
  FailOn("a");
  EXPECT_FALSE(IsCordoned("a"));
  FailOn("a");
  EXPECT_TRUE(cordons_.Find("a").value().for_failed_attempts());
}

TEST_F(NodeHealthTest, JobThatEndsWellClearsTheCount) {
  FailOn("a");
  v1::Job job;
  job.add_placements()->set_node("a");
  health_.OnAttemptOver(job, JobEvent::kFinish);
  FailOn("a");
  EXPECT_FALSE(IsCordoned("a"));
}

TEST_F(NodeHealthTest, HalfOfTheNodesOfAKindRemain) {
  CordonA();
  FailOn("b");
  FailOn("b");
  EXPECT_FALSE(IsCordoned("b")) << "none would remain";
  Attach("c");
  Attach("d");
  FailOn("b");
  EXPECT_TRUE(IsCordoned("b")) << "two of four remain";
}

TEST_F(NodeHealthTest, NodesThatDisconnectTogetherAreNotBlamed) {
  for (const char* node : {"a", "b"}) nodes_.Detach(node, outboxes_.at(node)->stream_generation());
  outboxes_.clear();
  presence_.Read();
  FailOn("a");
  FailOn("a");
  EXPECT_FALSE(IsCordoned("a"));
}

TEST_F(NodeHealthTest, UncordonsAfterFiveMinutesOfConnection) {
  CordonA();
  AdvanceAndUncordon(absl::Seconds(1));
  AdvanceAndUncordon(kHealthyFor - absl::Seconds(1));
  EXPECT_TRUE(IsCordoned("a"));
  Attach("a");
  health_.OnAttached("a", "new agent");
  AdvanceAndUncordon(absl::Seconds(1));
  EXPECT_TRUE(IsCordoned("a")) << "the restart of the agent interrupts it";
  AdvanceAndUncordon(kHealthyFor);
  EXPECT_FALSE(IsCordoned("a"));
}

TEST_F(NodeHealthTest, CordonOfAUserStays) {
  ASSERT_TRUE(cordons_.Set("a", v1::Cordon()).ok());
  AdvanceAndUncordon(absl::Seconds(1));
  AdvanceAndUncordon(2 * kHealthyFor);
  EXPECT_TRUE(IsCordoned("a"));
}

}  // namespace
}  // namespace fsdpd
