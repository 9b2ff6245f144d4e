#include "coordinator/attempt_nodes.h"

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
TEST(AttemptNodes, AnAttemptThatFailedOnANodeThatIsAwayIsThere) {
  v1::Job job;
  job.set_attempt(3);
  job.add_failed_attempts()->set_attempt(1);
  job.mutable_failed_attempts(0)->set_node("node-0");
  const std::vector<NodeView> all = {Seen("node-0", false), Seen("node-1", true), Seen("node-2", false)};
  EXPECT_THAT(NodesAwayOf(job, 1, all), ElementsAre("node-0"));
  EXPECT_THAT(NodesAwayOf(job, 2, all), ElementsAre("node-0", "node-2")) << "where it ran is not known";
  EXPECT_THAT(NodesAwayOf(job, 1, {Seen("node-1", true)}), ElementsAre("node-0")) << "forgotten, not unsaid";
  EXPECT_THAT(NodesAwayOf(job, 2, {Seen("node-1", true)}), IsEmpty());
}

}  // namespace
}  // namespace fsdpd
