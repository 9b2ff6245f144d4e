#include "coordinator/claims.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fsdpd {
namespace {

using ::testing::ElementsAre;

NodeSlots Node(const std::string& name, int slots, int free, v1::Device device = v1::DEVICE_CPU) {
  NodeSlots node;
  node.name = name;
  node.device = device;
  node.slots = slots;
  for (int i = 0; i < free; ++i) node.free_devices.push_back(i);
  return node;
}

PlaceRequest Request(int64_t nodes, int64_t ranks, v1::Device device = v1::DEVICE_CPU) {
  PlaceRequest request;
  request.nodes = nodes;
  request.ranks_per_node = ranks;
  request.device = device;
  return request;
}

std::vector<size_t> FreeIn(const std::vector<NodeSlots>& nodes) {
  std::vector<size_t> free;
  for (const NodeSlots& node : nodes) free.push_back(node.free_devices.size());
  return free;
}

TEST(Claims, KeepOnEachNodeWhatTheJobNeedsThereAndNoMore) {
  Claims claims({Node("half", 4, 1), Node("idle", 4, 4), Node("small", 1, 1)});
  claims.Add("large", Request(2, 2), /*firm=*/false);
  EXPECT_THAT(FreeIn(claims.unclaimed()), ElementsAre(0, 2, 1)) << "it could never use the small node";
  EXPECT_THAT(FreeIn(claims.lendable()), ElementsAre(1, 4, 1));
  EXPECT_THAT(FreeIn(claims.now()), ElementsAre(1, 4, 1));
}

TEST(Claims, AddUpAndAFirmOneLendsNothing) {
  Claims claims({Node("a", 8, 8)});
  claims.Add("first", Request(2, 4), /*firm=*/true);
  claims.Add("second", Request(2, 2), /*firm=*/false);
  EXPECT_THAT(FreeIn(claims.unclaimed()), ElementsAre(2));
  EXPECT_THAT(FreeIn(claims.lendable()), ElementsAre(4));
  claims.Renew({Node("a", 8, 7)});
  EXPECT_THAT(FreeIn(claims.unclaimed()), ElementsAre(1));
  EXPECT_THAT(FreeIn(claims.lendable()), ElementsAre(3));
}

TEST(Claims, NameTheFirstJobThatWaitsForTheSameNodes) {
  Claims claims({Node("cpu", 2, 0), Node("cuda", 2, 2, v1::DEVICE_CUDA)});
  EXPECT_EQ(claims.Ahead(Request(1, 1)), "");
  claims.Add("first", Request(2, 2), false);
  claims.Add("second", Request(2, 1), false);
  EXPECT_EQ(claims.Ahead(Request(1, 1)), "first");
  EXPECT_EQ(claims.Ahead(Request(1, 1, v1::DEVICE_CUDA)), "");
}

TEST(Claims, AreOfNoConcernWhereTheJobMayNotGo) {
  NodeSlots cordoned = Node("a", 2, 2);
  cordoned.cordon = "mended";
  NodeSlots tight = Node("b", 2, 2);
  tight.bytes_per_slot = 10;
  Claims claims({cordoned, tight});
  PlaceRequest large = Request(2, 1);
  large.bytes_per_rank = 11;
  claims.Add("large", large, false);
  EXPECT_THAT(FreeIn(claims.unclaimed()), ElementsAre(2, 2));
}

}  // namespace
}  // namespace fsdpd
