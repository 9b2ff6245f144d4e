#include "fsdp/telemetry/step_timeline.h"

#include <gtest/gtest.h>

namespace fsdpd {
namespace {

TEST(StepTimeline, HasSliceForEveryTimedInstruction) {
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
  const Timeline timeline = StepTimeline(program, layout, spans, 7, "rank 0");
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

// An all-gather of a bucket, a forward that waits for it, a release, and an all-gather that waits for that.
struct SmallStep {
  SmallStep() {
    layout.units.resize(1);
    layout.units[0].name = "layer.0";
    layout.buckets.resize(1);
    const auto add = [this](Op op, LaneId lane, std::vector<int> after, double begin, double end) {
      Instruction instruction;
      instruction.op = op;
      instruction.unit = 0;
      instruction.bucket = lane == LaneId::kGather ? 0 : -1;
      instruction.lane = lane;
      instruction.after = std::move(after);
      program.instructions.push_back(std::move(instruction));
      Span span;
      span.lane = lane;
      span.start_seconds = begin;
      span.end_seconds = end;
      spans.push_back(span);
    };
    add(Op::kGather, LaneId::kGather, {}, -1, 1);
    add(Op::kForward, LaneId::kCompute, {0}, 1, 3);
    add(Op::kRelease, LaneId::kCompute, {}, 3, 3);
    add(Op::kGather, LaneId::kGather, {2}, 3, 4);
    spans[0].received_bytes = 100;
    program.buffers.resize(1);
    program.buffers[0].bytes = 256;
    program.buffers[0].live = {{0, 2}};
  }
  Timeline timeline() const { return StepTimeline(program, layout, spans, 7, "rank 0"); }

  Layout layout;
  Program program;
  std::vector<Span> spans;
};

int64_t NumberOf(const Timeline::Slice& slice, const std::string& name) {
  for (const auto& [key, value] : slice.arguments) {
    if (key == name) return std::get<int64_t>(value);
  }
  return -1;
}

TEST(StepTimeline, SliceShowsItsSubject) {
  const Timeline timeline = SmallStep().timeline();
  EXPECT_EQ(timeline.step, 7);
  const Timeline::Slice& gather = timeline.slices[0];
  EXPECT_EQ(NumberOf(gather, "step"), 7);
  EXPECT_EQ(NumberOf(gather, "bucket"), 0);
  EXPECT_EQ(NumberOf(gather, "received_bytes"), 100);
  EXPECT_EQ(NumberOf(timeline.slices[1], "instruction"), 1);
  EXPECT_EQ(NumberOf(timeline.slices[1], "bucket"), -1) << "it acts on a unit";
}

TEST(StepTimeline, FlowLeadsFromAwaitedInstruction) {
  const Timeline timeline = SmallStep().timeline();
  ASSERT_EQ(timeline.slices.size(), 3u);
  ASSERT_EQ(timeline.flows.size(), 2u);
  EXPECT_EQ(timeline.flows[0].from, 0);
  EXPECT_EQ(timeline.flows[0].to, 1);
  EXPECT_EQ(timeline.flows[1].from, 1) << "a release has no slice: what came before it stands for it";
  EXPECT_EQ(timeline.flows[1].to, 2);
}

TEST(StepTimeline, UpdatesOfOtherStepsAreOmitted) {
  SmallStep made;
  made.spans[1].of_step_before = true;
  made.spans[3].measured = false;
  Timeline timeline = made.timeline();
  ASSERT_EQ(timeline.slices.size(), 2u);
  EXPECT_EQ(NumberOf(timeline.slices[1], "step"), 6);
  EXPECT_TRUE(timeline.flows.empty());
  AddStep(made.program, made.spans, {}, &timeline);
  EXPECT_EQ(timeline.components, (std::vector<std::string>{"allocated", "reserved"}));
}

TEST(StepTimeline, TraceHasStepAndMemory) {
  SmallStep made;
  v1::MemoryReport memory;
  memory.set_allocated_bytes(10);
  memory.set_reserved_bytes(20);
  Timeline timeline = made.timeline();
  AddStep(made.program, made.spans, memory, &timeline);
  EXPECT_EQ(timeline.tracks.back(), "step");
  EXPECT_EQ(timeline.slices.back().name, "step 7");
  EXPECT_EQ(timeline.slices.back().seconds, 4);
  EXPECT_EQ(timeline.components.back(), "arena in use");
  ASSERT_EQ(timeline.samples.size(), 2u);
  EXPECT_EQ(timeline.samples[0].start, 0) << "what is gathered before the step is there when it begins";
  EXPECT_EQ(timeline.samples[0].bytes, (std::vector<int64_t>{10, 20, 256}));
  EXPECT_EQ(timeline.samples[1].start, 3);
  EXPECT_EQ(timeline.samples[1].bytes, (std::vector<int64_t>{10, 20, 0}));
}

// Regression test: it was omitted.
TEST(StepTimeline, ConcurrentActivityHasItsOwnTrack) {
  Timeline timeline;
  timeline.seconds = 1e-6;
  timeline.begin_unix_nanos = 1000;
  timeline.tracks = {"compute"};
  const auto kernel = [](const char* name, uint32_t stream, int64_t begin, int64_t end) {
    return DeviceActivity{DeviceActivity::Kind::kKernel, name, stream, begin, end, 0};
  };
  AddActivities(
      {kernel("long", 7, 1000, 1500), kernel("within", 7, 1100, 1200), kernel("next", 7, 1300, 1400),
       kernel("other", 9, 1300, 1400), kernel("after", 7, 1500, 1600)},
      &timeline);
  EXPECT_EQ(timeline.tracks,
            (std::vector<std::string>{"compute", "GPU stream 7", "GPU stream 7 (2)", "GPU stream 9"}));
  ASSERT_EQ(timeline.slices.size(), 5u);
  const std::vector<int> tracks = {1, 2, 2, 3, 1};
  for (size_t i = 0; i < tracks.size(); ++i) EXPECT_EQ(timeline.slices[i].track, tracks[i]) << i;
  EXPECT_NEAR(timeline.slices[1].start, 100e-9, 1e-12) << "its own time";
  EXPECT_NEAR(timeline.slices[1].seconds, 100e-9, 1e-12);
}

}  // namespace
}  // namespace fsdpd
