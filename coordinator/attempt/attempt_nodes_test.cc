#include "coordinator/attempt/attempt_nodes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fsdpd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

NodeView Seen(const std::string& node, bool connected) {
  NodeView view;
  view.info.set_node(node);
  view.connected = connected;
  return view;
}

// The reader was told that another node had no log.
TEST(AttemptNodes, FindsAttemptThatFailedOnDisconnectedNode) {
  v1::Job job;
  job.set_attempt(3);
  job.add_failed_attempts()->set_attempt(1);
  job.mutable_failed_attempts(0)->set_node("node-0");
  const std::vector<NodeView> all = {Seen("node-0", false), Seen("node-1", true), Seen("node-2", false)};
  EXPECT_THAT(DisconnectedNodesOf(job, 1, all), ElementsAre("node-0"));
  EXPECT_THAT(DisconnectedNodesOf(job, 2, all), ElementsAre("node-0", "node-2")) << "its nodes are unknown";
  EXPECT_THAT(DisconnectedNodesOf(job, 1, {Seen("node-1", true)}), ElementsAre("node-0"))
      << "the node was deleted";
  EXPECT_THAT(DisconnectedNodesOf(job, 2, {Seen("node-1", true)}), IsEmpty());
}

void Launched(v1::Job* job, int32_t attempt, const std::string& node) {
  v1::Job::Event* event = job->add_events();
  event->set_kind(v1::EVENT_KIND_LAUNCHED);
  event->set_attempt(attempt);
  event->set_node(node);
}

// Its log was no longer retained, and the reader was referred to a node that had never hosted the job.
TEST(AttemptNodes, NodeWithoutTheAttemptIsNotQueried) {
  v1::Job job;
  job.set_attempt(3);
  Launched(&job, 1, "node-1");
  Launched(&job, 2, "");  // On several nodes.
  const std::vector<NodeView> all = {Seen("node-0", false), Seen("node-1", true)};
  EXPECT_THAT(DisconnectedNodesOf(job, 1, all), IsEmpty());
  EXPECT_THAT(DisconnectedNodesOf(job, 2, all), ElementsAre("node-0"));
  EXPECT_THAT(DisconnectedNodesOf(job, 1, {Seen("node-0", false), Seen("node-1", false)}),
              ElementsAre("node-1"));
  EXPECT_THAT(DisconnectedNodesOf(job, 1, {Seen("node-0", false)}), ElementsAre("node-1")) << "forgotten";
}

TEST(AttemptNodes, QueriesStepsFromNodesOfRankZero) {
  v1::Job job;
  job.set_attempt(3);
  v1::Job::Placement* placement = job.add_placements();
  placement->set_node("node-2");
  placement->set_ranks(1);
  Launched(&job, 1, "node-1");
  Launched(&job, 2, "node-1");
  const std::vector<NodeView> all = {Seen("node-0", false), Seen("node-1", true), Seen("node-2", true)};
  EXPECT_THAT(NodesWithSteps(job, std::nullopt, all), ElementsAre("node-1", "node-2"));
  EXPECT_THAT(NodesWithSteps(job, 2, all), ElementsAre("node-1"));
  EXPECT_THAT(NodesWithSteps(job, 3, all), ElementsAre("node-2"));
  job.mutable_events(0)->set_node("");
  EXPECT_THAT(NodesWithSteps(job, 1, all), ElementsAre("node-0", "node-1", "node-2"));
  EXPECT_THAT(NodesWithSteps(job, std::nullopt, all), ElementsAre("node-0", "node-1", "node-2"));
  EXPECT_THAT(NodesWithSteps(job, 2, all), ElementsAre("node-1"));
}

// A node that never hosted the job was queried for the log of an older attempt, and could forge it.
TEST(AttemptNodes, QueriesOnlyHostsOfAnOlderAttempt) {
  v1::Job job;
  job.set_attempt(2);
  Launched(&job, 1, "");
  const std::vector<NodeView> all = {Seen("node-0", true), Seen("node-1", true), Seen("s2", true)};
  EXPECT_THAT(NodesOf(job, 1, -1, all), ElementsAre("node-0", "node-1", "s2"))
      << "from a release that stored no hosts";
  for (const char* node : {"node-0", "node-1"}) {
    v1::Job::EarlierHost* host = job.add_earlier_hosts();
    host->set_node(node);
    host->set_attempt(1);
  }
  EXPECT_THAT(NodesOf(job, 1, -1, all), ElementsAre("node-0", "node-1"));
  EXPECT_THAT(NodesWithSteps(job, 1, all), ElementsAre("node-0", "node-1"));
  EXPECT_TRUE(MayHaveSteps(job, 1, "node-0"));
  EXPECT_FALSE(MayHaveSteps(job, 1, "s2"));
  v1::Job::Placement* const first = job.add_placements();
  first->set_node("node-1");
  v1::Job::Placement* const second = job.add_placements();
  second->set_node("node-0");
  second->set_first_rank(1);
  EXPECT_TRUE(MayHaveSteps(job, 2, "node-1"));
  EXPECT_FALSE(MayHaveSteps(job, 2, "node-0")) << "it has rank 1";
}

}  // namespace
}  // namespace fsdpd
