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

TEST(LaneTimes, ALaneIsInOrderAndLanesAreBesideEachOther) {
  const Program program = Of({On(LaneId::kCompute), On(LaneId::kGather), On(LaneId::kCompute)});
  const LaneTimes times = RunLanes(program, {2, 5, 1}, 1, {});
  EXPECT_EQ(times.steps[0][0].end, 2);
  EXPECT_EQ(times.steps[0][1].end, 5);
  EXPECT_EQ(times.steps[0][2].start, 2);
  EXPECT_EQ(times.steps[0][2].end, 3);
}

TEST(LaneTimes, WaitsForWhatItDependsOn) {
  const Program program = Of({On(LaneId::kGather), On(LaneId::kCompute, {0}), On(LaneId::kReduce, {1})});
  const LaneTimes times = RunLanes(program, {4, 3, 2}, 1, {});
  EXPECT_EQ(times.steps[0][1].start, 4);
  EXPECT_EQ(times.steps[0][2].start, 7);
  ASSERT_EQ(times.pieces.size(), 3u);
  EXPECT_EQ(times.pieces[1].running[static_cast<size_t>(LaneId::kCompute)], 1);
  EXPECT_EQ(times.pieces[1].running[static_cast<size_t>(LaneId::kGather)], -1);
}

TEST(LaneTimes, TheNextStepStartsWhereThePreviousAllows) {
  // The gather of the next step waits for this step's first compute and overlaps the second.
  const Program program = Of({On(LaneId::kGather, {}, {1}), On(LaneId::kCompute, {0}), On(LaneId::kCompute)});
  const LaneTimes times = RunLanes(program, {2, 3, 4}, 2, {});
  EXPECT_EQ(times.steps[1][0].start, 5);
  EXPECT_EQ(times.steps[1][1].start, 9);
  EXPECT_EQ(times.steps[1][2].end, 16);
}

TEST(LaneTimes, NothingTakesNoTime) {
  const Program program = Of(
      {On(LaneId::kCompute), On(LaneId::kGather, {0}), On(LaneId::kCompute, {1}), On(LaneId::kReduce, {2})});
  const LaneTimes times = RunLanes(program, {0, 0, 0, 0}, 3, {});
  EXPECT_EQ(times.steps[2][3].end, 0);
  EXPECT_TRUE(times.pieces.empty());
}

// 6 seconds of compute beside 4 of communication. Both are half as fast until the communication is done at 8;
// 2 of the compute's seconds are left.
TEST(LaneTimes, LanesSlowEachOtherOnlyWhileBothRun) {
  const Program program = Of({On(LaneId::kCompute), On(LaneId::kReduce)});
  const LaneTimes times = RunLanes(program, {6, 4}, 1, {2, 2});
  EXPECT_EQ(times.steps[0][1].end, 8);
  EXPECT_EQ(times.steps[0][0].end, 10);
}

TEST(LaneTimes, TwoCommunicationsSlowComputeOnceAndNotEachOther) {
  const Program program = Of({On(LaneId::kCompute), On(LaneId::kReduce), On(LaneId::kGather)});
  const LaneTimes times = RunLanes(program, {6, 3, 3}, 1, {2, 1});
  EXPECT_EQ(times.steps[0][1].end, 3);
  EXPECT_EQ(times.steps[0][2].end, 3);
  EXPECT_EQ(times.steps[0][0].end, 7.5);
}

TEST(LaneTimes, CopiesIntoHostMemorySlowNothingDown) {
  const Program program = Of({On(LaneId::kCompute), On(LaneId::kCopy)});
  const LaneTimes times = RunLanes(program, {6, 4}, 1, {2, 2});
  EXPECT_EQ(times.steps[0][1].end, 4);
  EXPECT_EQ(times.steps[0][0].end, 6);
}

TEST(LaneTimesDeathTest, ACycleIsAMistakeOfTheProgrammer) {
  const Program program = Of({On(LaneId::kCompute, {1}), On(LaneId::kGather, {0})});
  EXPECT_DEATH(RunLanes(program, {1, 1}, 1, {}), "check failed");
}

}  // namespace
}  // namespace fsdpd
