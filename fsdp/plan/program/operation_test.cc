#include "fsdp/plan/program/operation.h"

#include <gtest/gtest.h>

namespace fsdpd {
namespace {

TEST(Operation, CommunicationRunsOnOwnLanes) {
  for (const LaneId lane : {LaneId::kGather, LaneId::kReduce, LaneId::kOuter})
    EXPECT_TRUE(RunsExchanges(lane));
  for (const LaneId lane : {LaneId::kCompute, LaneId::kCopy}) EXPECT_FALSE(RunsExchanges(lane));
}

}  // namespace
}  // namespace fsdpd
