#include "coordinator/placer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

namespace fsdpd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

NodeSlots Node(const std::string& name, int slots, std::vector<int> free,
               v1::Device device = v1::DEVICE_CPU) {
  NodeSlots node;
  node.name = name;
  node.device = device;
  node.slots = slots;
  node.free_devices = std::move(free);
  if (static_cast<int>(node.free_devices.size()) < slots) node.jobs = {"job-x"};
  return node;
}

PlaceRequest Request(int64_t nodes, int64_t ranks) { return {nodes, ranks, v1::DEVICE_CPU}; }

TEST(Placer, GivesConsecutiveRanksToNodesByName) {
  const PlaceDecision d = Place(Request(2, 2), {Node("b", 2, {0, 1}), Node("a", 2, {0, 1})});
  ASSERT_EQ(d.placements.size(), 2u);
  EXPECT_EQ(d.placements[0].node(), "a");
  EXPECT_EQ(d.placements[0].first_rank(), 0);
  EXPECT_EQ(d.placements[1].node(), "b");
  EXPECT_EQ(d.placements[1].first_rank(), 2);
  EXPECT_EQ(d.reason, "launching 4 ranks on a, b");
}

TEST(Placer, UsesTheFreeDevicesOnly) {
  const PlaceDecision d = Place(Request(1, 2), {Node("a", 4, {1, 3})});
  ASSERT_TRUE(d.placed());
  EXPECT_THAT(d.placements[0].devices(), ElementsAre(1, 3));
}

TEST(Placer, KeepsLargeHolesForLargeJobs) {
  const PlaceDecision d = Place(Request(1, 1), {Node("a", 4, {0, 1, 2, 3}), Node("b", 4, {2})});
  ASSERT_TRUE(d.placed());
  EXPECT_EQ(d.placements[0].node(), "b");
}

TEST(Placer, ReasonNamesWhatIsNeededAndWhoHoldsIt) {
  const PlaceDecision d = Place(Request(2, 2), {Node("node-0", 2, {0, 1}), Node("node-1", 2, {})});
  EXPECT_FALSE(d.placed());
  EXPECT_EQ(d.reason,
            "needs 2 nodes with 2 free cpu slots each; node-0 has 2 of 2 free, node-1 has 0 of 2 free (held "
            "by job-x)");
}

TEST(Placer, SaysSoWhenTheJobIsLargerThanTheCluster) {
  const PlaceDecision d = Place(Request(3, 2), {Node("node-0", 2, {0, 1}), Node("node-1", 1, {0})});
  EXPECT_FALSE(d.placed());
  EXPECT_THAT(d.reason, HasSubstr("even when idle, only 1 connected node could take 2 ranks"));
}

TEST(Placer, SaysWhetherIdleNodesCouldTakeTheJobAndCountsThoseThatMayComeBack) {
  EXPECT_TRUE(Place(Request(1, 2), {Node("a", 2, {0})}).possible);
  EXPECT_FALSE(Place(Request(1, 3), {Node("a", 2, {0})}).possible);
  EXPECT_FALSE(Place(Request(2, 2), {Node("a", 2, {0, 1})}).possible);
  NodeSlots away = Node("b", 2, {});
  away.away = true;
  const PlaceDecision d = Place(Request(2, 2), {Node("a", 2, {0, 1}), away});
  EXPECT_TRUE(d.possible);
  EXPECT_FALSE(d.placed());
  EXPECT_THAT(d.reason, HasSubstr("a has 2 of 2 free, b is away"));
}

TEST(Placer, DoesNotMixDeviceKinds) {
  const PlaceDecision d = Place(Request(1, 1), {Node("gpu", 8, {0, 1}, v1::DEVICE_CUDA)});
  EXPECT_FALSE(d.placed());
  EXPECT_THAT(
      d.reason,
      HasSubstr("no registered node could take it: no cpu agent is connected (1 agent of another kind)"));
  EXPECT_THAT(Place(Request(1, 1), {}).reason, HasSubstr("no agent is connected"));
}

TEST(Placer, ReasonStaysShortInALargeCluster) {
  std::vector<NodeSlots> nodes;
  for (int i = 0; i < 2000; ++i) nodes.push_back(Node("node-" + std::to_string(i), 8, {}));
  const PlaceDecision d = Place(Request(1, 8), nodes);
  EXPECT_LT(d.reason.size(), 700u);
  EXPECT_THAT(d.reason, HasSubstr("and 1992 more"));
}

TEST(Placer, EveryRankIsPlacedOnceOnADistinctFreeDevice) {
  for (int nodes = 1; nodes <= 4; ++nodes) {
    for (int per_node = 1; per_node <= 3; ++per_node) {
      const std::vector<NodeSlots> cluster = {Node("a", 4, {0, 1, 2}), Node("b", 4, {3}),
                                              Node("c", 4, {0, 2}), Node("d", 4, {0, 1, 2, 3})};
      const PlaceDecision d = Place(Request(nodes, per_node), cluster);
      const int able = per_node == 1 ? 4 : per_node == 2 ? 3 : 2;
      ASSERT_EQ(d.placed(), nodes <= able) << d.reason;
      int next_rank = 0;
      for (const auto& placement : d.placements) {
        EXPECT_EQ(placement.first_rank(), next_rank);
        EXPECT_EQ(placement.devices_size(), per_node);
        next_rank += placement.ranks();
      }
      if (d.placed()) {
        EXPECT_EQ(next_rank, nodes * per_node);
      }
    }
  }
}

TEST(Placer, DefaultsOfAnEmptySpecAreOneCudaRank) {
  const PlaceRequest request = RequestOf(v1::JobSpec());
  EXPECT_EQ(request.nodes, 1);
  EXPECT_EQ(request.ranks_per_node, 1);
  EXPECT_EQ(request.device, v1::DEVICE_CUDA);
}

TEST(Placer, BehindReasonNamesTheJobAhead) {
  EXPECT_THAT(BehindReason(Request(1, 2), "big-1"), HasSubstr("waits behind job big-1"));
}

}  // namespace
}  // namespace fsdpd
