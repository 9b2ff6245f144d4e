#include "coordinator/reconcile/node_commands.h"

#include "coordinator/testing/full_disk.h"
#include "coordinator/testing/reconcile_parts.h"

namespace fsdpd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class NodeCommandsTest : public ReconcileParts {
 protected:
  std::string ReasonOf(const std::string& node) {
    return cordons_.Find(node).value_or(v1::Cordon()).reason();
  }
  void LoseWithRanks(const std::string& node, const std::string& job) {
    Run(QueuedJob(job), node);
    Settle();
    Lose(node);
  }

  DrainRunner drains_{{&table_, &presence_, &book_, &slots_, &cordons_, &clock_}};
  std::vector<std::string> forgotten_;
  NodeCommands commands_{{&table_, &presence_, &book_, &health_, &preflights_, &slots_, &records_, &drains_,
                          &cordons_, &nodes_, &clock_,
                          [this](const std::string& node) { forgotten_.push_back(node); }}};
};

TEST_F(NodeCommandsTest, UnknownNodesAreNotFound) {
  for (const absl::Status& status :
       {commands_.Cordon("x", ""), commands_.Uncordon("x"), commands_.Drain("x", "", 0, false),
        commands_.Preflight("x"), commands_.Delete("x", false)})
    EXPECT_TRUE(absl::IsNotFound(status)) << status;
}

TEST_F(NodeCommandsTest, CordonWithoutReasonKeepsTheReasonOfAUser) {
  Attach("a");
  ASSERT_TRUE(commands_.Cordon("a", "new disk").ok());
  ASSERT_TRUE(commands_.Cordon("a", "").ok());
  EXPECT_EQ(ReasonOf("a"), "new disk");
}

TEST_F(NodeCommandsTest, CordonWithoutReasonReplacesAnAutomaticOne) {
  Attach("a");
  v1::Cordon automatic;
  automatic.set_reason("two agents were killed");
  automatic.set_automatic(true);
  ASSERT_TRUE(cordons_.Set("a", automatic).ok());
  ASSERT_TRUE(commands_.Cordon("a", "").ok());
  EXPECT_EQ(ReasonOf("a"), "two agents were killed");
  EXPECT_FALSE(cordons_.Find("a")->automatic());
}

TEST_F(NodeCommandsTest, NewReasonDoesNotEndADrain) {
  Attach("a");
  ASSERT_TRUE(commands_.Drain("a", "new disk", 60'000, false).ok());
  ASSERT_TRUE(commands_.Cordon("a", "new fan").ok());
  EXPECT_EQ(ReasonOf("a"), "new fan");
  EXPECT_TRUE(cordons_.Find("a")->has_drain());
}

TEST_F(NodeCommandsTest, FullDiskChangesNothing) {
  Attach("a");
  ASSERT_TRUE(commands_.Cordon("a", "new disk").ok());
  {
    const FullDisk full;
    EXPECT_FALSE(commands_.Uncordon("a").ok());
  }
  EXPECT_EQ(ReasonOf("a"), "new disk");
  EXPECT_TRUE(commands_.Uncordon("a").ok());
  EXPECT_FALSE(cordons_.Find("a").has_value());
}

TEST_F(NodeCommandsTest, UncordonAcceptsAFailedPreflight) {
  Attach("a");
  v1::NodePreflight slow;
  slow.add_violations();
  preflights_.results().Set("a", slow);
  ASSERT_TRUE(commands_.Cordon("a", "slow").ok());
  ASSERT_TRUE(commands_.Uncordon("a").ok());
  EXPECT_TRUE(preflights_.results().Find("a")->accepted());
}

TEST_F(NodeCommandsTest, PreflightNeedsAnIdleNodeThatSupportsIt) {
  Attach("old");
  EXPECT_THAT(commands_.Preflight("old").message(), HasSubstr("upgrade the agent"));
  Attach("busy", /*slots=*/1, /*measures=*/true);
  Run(QueuedJob("j"), "busy");
  EXPECT_THAT(commands_.Preflight("busy").message(), HasSubstr("is in use by j"));
  Attach("idle", /*slots=*/1, /*measures=*/true);
  ASSERT_TRUE(commands_.Preflight("idle").ok());
  EXPECT_TRUE(preflights_.IsMeasuring("idle"));
}

TEST_F(NodeCommandsTest, DeletesALostNodeAndItsCordon) {
  Attach("a");
  Settle();
  EXPECT_THAT(commands_.Delete("a", false).message(), HasSubstr("stop its agent before you delete the node"));
  ASSERT_TRUE(commands_.Cordon("a", "new disk").ok());
  Lose("a");
  ASSERT_TRUE(commands_.Delete("a", false).ok());
  EXPECT_THAT(forgotten_, ElementsAre("a"));
  EXPECT_FALSE(cordons_.Find("a").has_value());
  EXPECT_TRUE(absl::IsNotFound(commands_.Delete("a", false)));
}

TEST_F(NodeCommandsTest, NodeThatHostsRanksIsNotDeleted) {
  Attach("a");
  LoseWithRanks("a", "j");
  const absl::Status refused = commands_.Delete("a", /*force=*/true);
  EXPECT_THAT(refused.message(), HasSubstr("hosts ranks of j: wait until the job has left the node"));
  EXPECT_THAT(forgotten_, IsEmpty());
}

}  // namespace
}  // namespace fsdpd
