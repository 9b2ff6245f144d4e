#include "coordinator/schedule/reservations.h"

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

TEST(Reservations, ReserveOnlyWhatJobNeedsPerNode) {
  Reservations reservations({Node("half", 4, 1), Node("idle", 4, 4), Node("small", 1, 1)});
  reservations.Add("large", Request(2, 2), /*firm=*/false);
  EXPECT_THAT(FreeIn(reservations.unreserved()), ElementsAre(0, 2, 1)) << "it could never use the small node";
  EXPECT_THAT(FreeIn(reservations.backfillable()), ElementsAre(1, 4, 1));
  EXPECT_THAT(FreeIn(reservations.now()), ElementsAre(1, 4, 1));
}

TEST(Reservations, AddUpAndFirmAllowsNoBackfill) {
  Reservations reservations({Node("a", 8, 8)});
  reservations.Add("first", Request(2, 4), /*firm=*/true);
  reservations.Add("second", Request(2, 2), /*firm=*/false);
  EXPECT_THAT(FreeIn(reservations.unreserved()), ElementsAre(2));
  EXPECT_THAT(FreeIn(reservations.backfillable()), ElementsAre(4));
  reservations.Renew({Node("a", 8, 7)});
  EXPECT_THAT(FreeIn(reservations.unreserved()), ElementsAre(1));
  EXPECT_THAT(FreeIn(reservations.backfillable()), ElementsAre(3));
}

TEST(Reservations, NameFirstJobWaitingForSameNodes) {
  Reservations reservations({Node("cpu", 2, 0), Node("cuda", 2, 2, v1::DEVICE_CUDA)});
  EXPECT_EQ(reservations.Ahead(Request(1, 1)), "");
  reservations.Add("first", Request(2, 2), false);
  reservations.Add("second", Request(2, 1), false);
  EXPECT_EQ(reservations.Ahead(Request(1, 1)), "first");
  EXPECT_EQ(reservations.Ahead(Request(1, 1, v1::DEVICE_CUDA)), "");
}

TEST(Reservations, IgnoreNodesThatJobCannotUse) {
  NodeSlots cordoned = Node("a", 2, 2);
  cordoned.cordon = "mended";
  NodeSlots tight = Node("b", 2, 2);
  tight.bytes_per_slot = 10;
  Reservations reservations({cordoned, tight});
  PlaceRequest large = Request(2, 1);
  large.bytes_per_rank = 11;
  reservations.Add("large", large, false);
  EXPECT_THAT(FreeIn(reservations.unreserved()), ElementsAre(2, 2));
}

}  // namespace
}  // namespace fsdpd
