#include "fsdp/telemetry/timeline_report.h"

#include <absl/strings/str_cat.h>
#include <gtest/gtest.h>

#include <numeric>

#include "fsdp/plan/predict/simulate.h"

namespace fsdpd {
namespace {

int64_t SumOf(const v1::StepTimeline::MemorySample& sample) {
  return std::accumulate(sample.bytes().begin(), sample.bytes().end(), int64_t{0});
}

// A bucket is gathered, a forward reads it, a backward fills its gradient, which is reduced. 1,000 bytes of
// main parameters, 2,000 of moments, 500 of gradients; an arena of 4,000.
struct SmallStep {
  SmallStep() {
    layout.units.resize(1);
    layout.units[0].name = "layer.0";
    layout.buckets.resize(1);
    Add(Op::kGather, LaneId::kGather, -1, 1);
    Add(Op::kForward, LaneId::kCompute, 1, 3);
    Add(Op::kBackward, LaneId::kCompute, 3, 7);
    Add(Op::kRelease, LaneId::kCompute, 7, 7.5);
    Add(Op::kReduce, LaneId::kReduce, 7, 9);
    program.buffers.resize(2);
    program.buffers[0].bytes = 300;
    program.buffers[0].live = {{0, 3}};
    program.buffers[1].kind = BufferKind::kReduce;
    program.buffers[1].bytes = 700;
    program.buffers[1].live = {{2, 4}};
    persistent = {1000, 2000, 500, 4000};
    held.at_begin = 7510;  // Ten more than the persistent memory.
    held.by_instruction.resize(4);
    held.by_instruction[1] = {7900, 7800};
    held.by_instruction[2] = {8600, 7510};
    held.by_instruction[3] = {7510, 7510};
  }
  void Add(Op op, LaneId lane, double begin, double end) {
    Instruction instruction;
    instruction.op = op;
    instruction.unit = 0;
    const bool exchanges = lane == LaneId::kGather || lane == LaneId::kReduce;
    instruction.bucket = exchanges ? 0 : -1;
    instruction.micro_batch = op == Op::kForward || op == Op::kBackward ? 0 : -1;
    instruction.lane = lane;
    program.instructions.push_back(std::move(instruction));
    Span span;
    span.lane = lane;
    span.start_seconds = begin;
    span.end_seconds = end;
    spans.push_back(span);
  }
  v1::StepTimeline MakeTimeline(bool full_gradients = false) const {
    return TimelineReport(program, layout, persistent, full_gradients).Of(7, spans, held);
  }

  // The bytes of a component at a time.
  static int64_t At(const v1::StepTimeline& timeline, double seconds, const std::string& component) {
    int index = 0;
    while (timeline.components(index) != component) ++index;
    int64_t bytes = -1;
    for (const auto& sample : timeline.memory()) {
      if (sample.start_seconds() <= seconds) bytes = sample.bytes(index);
    }
    return bytes;
  }

  Layout layout;
  Program program;
  std::vector<Span> spans;
  PersistentBytes persistent;
  HeldBytes held;
};

TEST(TimelineReport, HasRunForEveryTimedInstruction) {
  SmallStep step;
  step.spans[4].measured = false;
  const v1::StepTimeline timeline = step.MakeTimeline();
  EXPECT_EQ(timeline.step(), 7);
  ASSERT_EQ(timeline.runs_size(), 3);
  EXPECT_EQ(timeline.runs(0).lane(), "gather");
  EXPECT_EQ(timeline.runs(0).start_seconds(), -1);
  EXPECT_EQ(timeline.runs(0).seconds(), 2);
  EXPECT_EQ(timeline.runs(1).instruction(), "Forward layer.0 mb 0");
  EXPECT_EQ(timeline.runs(2).instruction(), "Backward layer.0 mb 0");
  EXPECT_EQ(timeline.runs_omitted(), 0);
}

TEST(TimelineReport, CountsLiveBuffers) {
  const v1::StepTimeline timeline = SmallStep().MakeTimeline();
  EXPECT_EQ(SmallStep::At(timeline, 0, "gather_buffers"), 300) << "it was gathered beside the step before";
  EXPECT_EQ(SmallStep::At(timeline, 7.4, "gather_buffers"), 300);
  EXPECT_EQ(SmallStep::At(timeline, 7.5, "gather_buffers"), 0) << "released";
  EXPECT_EQ(SmallStep::At(timeline, 2.9, "reduce_buffers"), 0);
  EXPECT_EQ(SmallStep::At(timeline, 3, "reduce_buffers"), 700);
  EXPECT_EQ(SmallStep::At(timeline, 9, "reduce_buffers"), 0);
  EXPECT_EQ(SmallStep::At(timeline, 3, "arena_unused"), 4000 - 300 - 700);
  EXPECT_EQ(SmallStep::At(timeline, 9, "arena_unused"), 4000);
}

TEST(TimelineReport, CountsPeakThenRemainderOfInstruction) {
  const v1::StepTimeline timeline = SmallStep().MakeTimeline();
  EXPECT_EQ(SmallStep::At(timeline, 0.5, "activations_and_workspace"), 10);
  EXPECT_EQ(SmallStep::At(timeline, 1, "activations_and_workspace"), 400);
  EXPECT_EQ(SmallStep::At(timeline, 3, "activations_and_workspace"), 1100);
  EXPECT_EQ(SmallStep::At(timeline, 7, "activations_and_workspace"), 10);
}

TEST(TimelineReport, SampleSumEqualsAllocatedBytes) {
  const v1::StepTimeline timeline = SmallStep().MakeTimeline();
  int64_t highest = 0;
  double before = -1;
  for (const auto& sample : timeline.memory()) {
    ASSERT_EQ(sample.bytes_size(), timeline.components_size());
    EXPECT_GT(sample.start_seconds(), before);
    before = sample.start_seconds();
    highest = std::max(highest, SumOf(sample));
  }
  EXPECT_EQ(timeline.memory(0).start_seconds(), 0);
  EXPECT_EQ(SumOf(timeline.memory(0)), 7510);
  EXPECT_EQ(highest, 8600);
}

TEST(TimelineReport, UsesComponentNamesOfPlan) {
  const v1::StepTimeline timeline = SmallStep().MakeTimeline();
  const std::vector<std::string>& planned = SimulatedComponents();
  for (int i = 0; i < 6; ++i) EXPECT_EQ(timeline.components(i), planned[static_cast<size_t>(i)]);
}

TEST(TimelineReport, CountsReduceBuffersAsGradientsIfUnsharded) {
  const v1::StepTimeline timeline = SmallStep().MakeTimeline(/*full_gradients=*/true);
  EXPECT_EQ(SmallStep::At(timeline, 3, "gradients"), 500 + 700);
  EXPECT_EQ(SmallStep::At(timeline, 3, "reduce_buffers"), 0);
}

// The updates shown are those of the previous step; its own run with the next one.
TEST(TimelineReport, LaunchedStepKeepsUpdateInputsLive) {
  SmallStep step;
  step.Add(Op::kUpdate, LaneId::kCompute, 0.1, 0.4);
  step.spans.back().of_step_before = true;
  step.program.buffers[1].live = {{2, 5}};
  const v1::StepTimeline timeline = step.MakeTimeline();
  EXPECT_EQ(timeline.runs(timeline.runs_size() - 1).instruction(), "Update layer.0");
  EXPECT_EQ(SmallStep::At(timeline, 1, "reduce_buffers"), 0);
  EXPECT_EQ(SmallStep::At(timeline, 8.9, "reduce_buffers"), 700);
  EXPECT_EQ(SmallStep::At(timeline, 9, "reduce_buffers"), 0);
}

TEST(TimelineReport, OmitsMemoryWithoutInstrumentedAllocator) {
  SmallStep step;
  step.held = {};
  const v1::StepTimeline timeline = step.MakeTimeline();
  EXPECT_EQ(timeline.memory_size(), 0);
  EXPECT_EQ(timeline.components_size(), 0);
  EXPECT_EQ(timeline.runs_size(), 4);
}

TEST(TimelineReport, LimitsRunsAndSamples) {
  SmallStep step;
  for (int i = 0; i < 5000; ++i) {
    step.Add(Op::kForward, LaneId::kCompute, 10 + i, 10.25 + i + (i % 2 == 0 ? 0.5 : 0));
    step.held.by_instruction.resize(step.spans.size());
    step.held.by_instruction.back() = {i == 3333 ? 9999 : 7900, 7800};
  }
  const v1::StepTimeline timeline = step.MakeTimeline();
  ASSERT_EQ(timeline.runs_size(), static_cast<int>(kMaxTimelineRuns));
  EXPECT_EQ(timeline.runs_omitted(), 5004 - static_cast<int>(kMaxTimelineRuns));
  int longer = 0;
  for (const auto& run : timeline.runs()) longer += run.seconds() >= 0.75 ? 1 : 0;
  EXPECT_EQ(longer, 4 + 2500);
  EXPECT_EQ(timeline.runs(0).lane(), "gather") << "in the program's order";
  EXPECT_LE(timeline.memory_size(), static_cast<int>(kMaxTimelineSamples));
  EXPECT_GT(timeline.memory_size(), static_cast<int>(kMaxTimelineSamples) / 2);
  EXPECT_GT(timeline.samples_merged(), 1);
  int64_t highest = 0;
  for (const auto& sample : timeline.memory()) highest = std::max(highest, SumOf(sample));
  EXPECT_EQ(highest, 9999);
}

}  // namespace
}  // namespace fsdpd
