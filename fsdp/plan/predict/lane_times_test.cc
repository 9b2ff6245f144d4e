#include "fsdp/plan/predict/lane_times.h"

#include <gtest/gtest.h>

namespace fsdpd {
namespace {

Instruction On(LaneId lane, std::vector<int> after = {}, std::vector<int> after_previous = {}) {
  Instruction i;
  i.lane = lane;
  i.after = std::move(after);
  i.after_previous = std::move(after_previous);
  return i;
}

Program Of(std::vector<Instruction> instructions) {
  Program program;
  program.instructions = std::move(instructions);
  return program;
}

TEST(LaneTimes, LanesAreInOrderAndConcurrent) {
  const Program program = Of({On(LaneId::kCompute), On(LaneId::kGather), On(LaneId::kCompute)});
  const LaneTimes times = RunLanes(program, {2, 5, 1}, 1, {});
  EXPECT_EQ(times.steps[0][0].end, 2);
  EXPECT_EQ(times.steps[0][1].end, 5);
  EXPECT_EQ(times.steps[0][2].start, 2);
  EXPECT_EQ(times.steps[0][2].end, 3);
}

TEST(LaneTimes, WaitsForDependencies) {
  const Program program = Of({On(LaneId::kGather), On(LaneId::kCompute, {0}), On(LaneId::kReduce, {1})});
  const LaneTimes times = RunLanes(program, {4, 3, 2}, 1, {});
  EXPECT_EQ(times.steps[0][1].start, 4);
  EXPECT_EQ(times.steps[0][2].start, 7);
  ASSERT_EQ(times.pieces.size(), 3u);
  EXPECT_EQ(times.pieces[1].running[static_cast<size_t>(LaneId::kCompute)], 1);
  EXPECT_EQ(times.pieces[1].running[static_cast<size_t>(LaneId::kGather)], -1);
}

TEST(LaneTimes, NextStepWaitsForAfterPrevious) {
  // The gather of the next step waits for this step's first compute and overlaps the second.
  const Program program = Of({On(LaneId::kGather, {}, {1}), On(LaneId::kCompute, {0}), On(LaneId::kCompute)});
  const LaneTimes times = RunLanes(program, {2, 3, 4}, 2, {});
  EXPECT_EQ(times.steps[1][0].start, 5);
  EXPECT_EQ(times.steps[1][1].start, 9);
  EXPECT_EQ(times.steps[1][2].end, 16);
}

TEST(LaneTimes, EmptyInstructionTakesNoTime) {
  const Program program = Of(
      {On(LaneId::kCompute), On(LaneId::kGather, {0}), On(LaneId::kCompute, {1}), On(LaneId::kReduce, {2})});
  const LaneTimes times = RunLanes(program, {0, 0, 0, 0}, 3, {});
  EXPECT_EQ(times.steps[2][3].end, 0);
  EXPECT_TRUE(times.pieces.empty());
}

// 6 s of compute concurrent with 4 s of communication. Both run at half speed until the communication is done
// at 8 s; 2 s of compute remain.
TEST(LaneTimes, SlowdownAppliesWhileBothRun) {
  const Program program = Of({On(LaneId::kCompute), On(LaneId::kReduce)});
  const LaneTimes times = RunLanes(program, {6, 4}, 1, {2, 2});
  EXPECT_EQ(times.steps[0][1].end, 8);
  EXPECT_EQ(times.steps[0][0].end, 10);
}

TEST(LaneTimes, ConcurrentCommunicationSlowsComputeOnce) {
  const Program program = Of({On(LaneId::kCompute), On(LaneId::kReduce), On(LaneId::kGather)});
  const LaneTimes times = RunLanes(program, {6, 3, 3}, 1, {2, 1});
  EXPECT_EQ(times.steps[0][1].end, 3);
  EXPECT_EQ(times.steps[0][2].end, 3);
  EXPECT_EQ(times.steps[0][0].end, 7.5);
}

TEST(LaneTimes, HostCopiesSlowNothingDown) {
  const Program program = Of({On(LaneId::kCompute), On(LaneId::kCopy)});
  const LaneTimes times = RunLanes(program, {6, 4}, 1, {2, 2});
  EXPECT_EQ(times.steps[0][1].end, 4);
  EXPECT_EQ(times.steps[0][0].end, 6);
}

TEST(LaneTimesDeathTest, CycleAborts) {
  const Program program = Of({On(LaneId::kCompute, {1}), On(LaneId::kGather, {0})});
  EXPECT_DEATH(RunLanes(program, {1, 1}, 1, {}), "check failed");
}

}  // namespace
}  // namespace fsdpd
