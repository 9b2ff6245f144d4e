#include "fsdp/telemetry/step_timeline.h"

#include <gtest/gtest.h>

namespace fsdpd {
namespace {

TEST(StepTimeline, HasASliceForEveryInstructionThatTakesTime) {
  Layout layout;
  layout.units.resize(2);
  layout.units[1].name = "layer.0";
  Program program;
  program.instructions.resize(4);
  program.instructions[0].op = Op::kForward;
  program.instructions[0].unit = 1;
  program.instructions[0].micro_batch = 2;
  program.instructions[1].op = Op::kRelease;
  program.instructions[2].op = Op::kNorm;
  program.instructions[2].lane = LaneId::kReduce;
  program.instructions[3].op = Op::kSnapshot;
  program.instructions[3].unit = 1;
  program.instructions[3].lane = LaneId::kCopy;
  std::vector<Span> spans(4);
  spans[0].start_seconds = -0.5;
  spans[0].end_seconds = 1;
  spans[2].lane = LaneId::kReduce;
  spans[2].start_seconds = spans[2].end_seconds = 2;
  spans[3].lane = LaneId::kCopy;
  spans[3].start_seconds = 1;
  spans[3].end_seconds = 3;
  const Timeline timeline = StepTimeline(program, layout, spans, "rank 0");
  EXPECT_EQ(timeline.title, "rank 0");
  EXPECT_EQ(timeline.tracks, (std::vector<std::string>{"compute", "gather", "reduce", "outer", "copy"}));
  ASSERT_EQ(timeline.slices.size(), 3u);
  EXPECT_EQ(timeline.slices[0].kind, "Forward");
  EXPECT_EQ(timeline.slices[0].name, "Forward layer.0 mb 2");
  EXPECT_EQ(timeline.slices[0].start, -0.5);
  EXPECT_EQ(timeline.slices[0].seconds, 1.5);
  EXPECT_EQ(timeline.slices[1].name, "Norm");
  EXPECT_EQ(timeline.slices[1].track, 2);
  EXPECT_EQ(timeline.slices[2].name, "Snapshot layer.0");
  EXPECT_EQ(timeline.slices[2].track, 4);
  EXPECT_EQ(timeline.seconds, 2) << "copies run beside the next step";
}

}  // namespace
}  // namespace fsdpd
