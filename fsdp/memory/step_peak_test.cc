#include "fsdp/memory/step_peak.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace fsdpd {
namespace {

// A fake allocator's counters.
struct Counted {
  explicit Counted(bool by_instruction = false)
      : peak([this] { return counters; }, [this] { counters.peak_bytes = counters.allocated_bytes; },
             by_instruction) {}
  void Hold(int64_t bytes) {
    counters.allocated_bytes = bytes;
    counters.peak_bytes = std::max(counters.peak_bytes, bytes);
  }

  MemoryCounters counters;
  StepPeak peak;
};

TEST(StepPeak, IsTheLastInstructionThatRaisedIt) {
  Counted memory;
  memory.Hold(100);
  memory.peak.Begin();
  EXPECT_FALSE(memory.peak.instruction().has_value());
  memory.peak.Ended(0);
  EXPECT_FALSE(memory.peak.instruction().has_value()) << "it took nothing";
  memory.Hold(300);
  memory.peak.Ended(1);
  memory.Hold(500);
  memory.peak.Ended(2);
  memory.peak.Ended(3);
  EXPECT_EQ(memory.peak.instruction(), 2);
}

TEST(StepPeak, BeginForgetsThePreviousStep) {
  Counted memory;
  memory.Hold(100);
  memory.peak.Begin();
  memory.Hold(900);
  memory.peak.Ended(7);
  memory.Hold(100);
  memory.peak.Begin();
  memory.Hold(200);
  memory.peak.Ended(3);
  EXPECT_EQ(memory.peak.instruction(), 3);
  EXPECT_EQ(memory.peak.highest_bytes(), 200);
}

TEST(StepPeak, MeasuresEachInstruction) {
  Counted memory(/*by_instruction=*/true);
  memory.Hold(100);
  memory.peak.Begin();
  memory.Hold(700);
  memory.Hold(300);
  memory.peak.Ended(0);
  memory.Hold(400);
  memory.Hold(150);
  memory.peak.Ended(2);
  EXPECT_EQ(memory.peak.held().at_begin, 100);
  const std::vector<HeldBytes::Instruction> held = memory.peak.held().by_instruction;
  ASSERT_EQ(held.size(), 3u);
  EXPECT_EQ(held[0].highest, 700);
  EXPECT_EQ(held[0].left, 300);
  EXPECT_EQ(held[1].highest, 0) << "of another lane";
  EXPECT_EQ(held[2].highest, 400) << "not the height of the one before";
  EXPECT_EQ(held[2].left, 150);
  EXPECT_EQ(memory.peak.instruction(), 0);
  EXPECT_EQ(memory.peak.highest_bytes(), 700) << "the step's, whatever the allocator tells since";
}

TEST(StepPeak, OtherwiseKeepsThePeakOfTheStep) {
  Counted memory;
  memory.peak.Begin();
  memory.Hold(700);
  memory.Hold(300);
  memory.peak.Ended(0);
  EXPECT_EQ(memory.counters.peak_bytes, 700);
  EXPECT_TRUE(memory.peak.held().by_instruction.empty());
}

}  // namespace
}  // namespace fsdpd
