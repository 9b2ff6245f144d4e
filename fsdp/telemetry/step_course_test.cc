#include "fsdp/telemetry/step_course.h"

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
    standing = {1000, 2000, 500, 4000};
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
  v1::StepTimeline Course(bool whole_gradients = false) const {
    return StepCourses(program, layout, standing, whole_gradients).Of(7, spans, held);
  }

  // The bytes of a component at a time.
  static int64_t At(const v1::StepTimeline& course, double seconds, const std::string& component) {
    int index = 0;
    while (course.components(index) != component) ++index;
    int64_t bytes = -1;
    for (const auto& sample : course.memory()) {
      if (sample.start_seconds() <= seconds) bytes = sample.bytes(index);
    }
    return bytes;
  }

  Layout layout;
  Program program;
  std::vector<Span> spans;
  StandingBytes standing;
  HeldBytes held;
};

TEST(StepCourses, HasRunForEveryTimedInstruction) {
  SmallStep step;
  step.spans[4].measured = false;
  const v1::StepTimeline course = step.Course();
  EXPECT_EQ(course.step(), 7);
  ASSERT_EQ(course.runs_size(), 3);
  EXPECT_EQ(course.runs(0).lane(), "gather");
  EXPECT_EQ(course.runs(0).start_seconds(), -1);
  EXPECT_EQ(course.runs(0).seconds(), 2);
  EXPECT_EQ(course.runs(1).instruction(), "Forward layer.0 mb 0");
  EXPECT_EQ(course.runs(2).instruction(), "Backward layer.0 mb 0");
  EXPECT_EQ(course.runs_omitted(), 0);
}

TEST(StepCourses, CountsLiveBuffers) {
  const v1::StepTimeline course = SmallStep().Course();
  EXPECT_EQ(SmallStep::At(course, 0, "gather_buffers"), 300) << "it was gathered beside the step before";
  EXPECT_EQ(SmallStep::At(course, 7.4, "gather_buffers"), 300);
  EXPECT_EQ(SmallStep::At(course, 7.5, "gather_buffers"), 0) << "released";
  EXPECT_EQ(SmallStep::At(course, 2.9, "reduce_buffers"), 0);
  EXPECT_EQ(SmallStep::At(course, 3, "reduce_buffers"), 700);
  EXPECT_EQ(SmallStep::At(course, 9, "reduce_buffers"), 0);
  EXPECT_EQ(SmallStep::At(course, 3, "arena_unused"), 4000 - 300 - 700);
  EXPECT_EQ(SmallStep::At(course, 9, "arena_unused"), 4000);
}

TEST(StepCourses, CountsPeakThenRemainderOfInstruction) {
  const v1::StepTimeline course = SmallStep().Course();
  EXPECT_EQ(SmallStep::At(course, 0.5, "activations_and_workspace"), 10);
  EXPECT_EQ(SmallStep::At(course, 1, "activations_and_workspace"), 400);
  EXPECT_EQ(SmallStep::At(course, 3, "activations_and_workspace"), 1100);
  EXPECT_EQ(SmallStep::At(course, 7, "activations_and_workspace"), 10);
}

TEST(StepCourses, SampleSumEqualsAllocatedBytes) {
  const v1::StepTimeline course = SmallStep().Course();
  int64_t highest = 0;
  double before = -1;
  for (const auto& sample : course.memory()) {
    ASSERT_EQ(sample.bytes_size(), course.components_size());
    EXPECT_GT(sample.start_seconds(), before);
    before = sample.start_seconds();
    highest = std::max(highest, SumOf(sample));
  }
  EXPECT_EQ(course.memory(0).start_seconds(), 0);
  EXPECT_EQ(SumOf(course.memory(0)), 7510);
  EXPECT_EQ(highest, 8600);
}

TEST(StepCourses, UsesComponentNamesOfPlan) {
  const v1::StepTimeline course = SmallStep().Course();
  const std::vector<std::string>& planned = SimulatedComponents();
  for (int i = 0; i < 6; ++i) EXPECT_EQ(course.components(i), planned[static_cast<size_t>(i)]);
}

TEST(StepCourses, CountsReduceBuffersAsGradientsIfUnsharded) {
  const v1::StepTimeline course = SmallStep().Course(/*whole_gradients=*/true);
  EXPECT_EQ(SmallStep::At(course, 3, "gradients"), 500 + 700);
  EXPECT_EQ(SmallStep::At(course, 3, "reduce_buffers"), 0);
}

// The updates shown are those of the previous step; its own run with the next one.
TEST(StepCourses, LaunchedStepKeepsUpdateInputsLive) {
  SmallStep step;
  step.Add(Op::kUpdate, LaneId::kCompute, 0.1, 0.4);
  step.spans.back().of_step_before = true;
  step.program.buffers[1].live = {{2, 5}};
  const v1::StepTimeline course = step.Course();
  EXPECT_EQ(course.runs(course.runs_size() - 1).instruction(), "Update layer.0");
  EXPECT_EQ(SmallStep::At(course, 1, "reduce_buffers"), 0);
  EXPECT_EQ(SmallStep::At(course, 8.9, "reduce_buffers"), 700);
  EXPECT_EQ(SmallStep::At(course, 9, "reduce_buffers"), 0);
}

TEST(StepCourses, OmitsMemoryWithoutInstrumentedAllocator) {
  SmallStep step;
  step.held = {};
  const v1::StepTimeline course = step.Course();
  EXPECT_EQ(course.memory_size(), 0);
  EXPECT_EQ(course.components_size(), 0);
  EXPECT_EQ(course.runs_size(), 4);
}

TEST(StepCourses, LimitsRunsAndSamples) {
  SmallStep step;
  for (int i = 0; i < 5000; ++i) {
    step.Add(Op::kForward, LaneId::kCompute, 10 + i, 10.25 + i + (i % 2 == 0 ? 0.5 : 0));
    step.held.by_instruction.resize(step.spans.size());
    step.held.by_instruction.back() = {i == 3333 ? 9999 : 7900, 7800};
  }
  const v1::StepTimeline course = step.Course();
  ASSERT_EQ(course.runs_size(), static_cast<int>(kMaxCourseRuns));
  EXPECT_EQ(course.runs_omitted(), 5004 - static_cast<int>(kMaxCourseRuns));
  int longer = 0;
  for (const auto& run : course.runs()) longer += run.seconds() >= 0.75 ? 1 : 0;
  EXPECT_EQ(longer, 4 + 2500);
  EXPECT_EQ(course.runs(0).lane(), "gather") << "in the program's order";
  EXPECT_LE(course.memory_size(), static_cast<int>(kMaxCourseSamples));
  EXPECT_GT(course.memory_size(), static_cast<int>(kMaxCourseSamples) / 2);
  EXPECT_GT(course.samples_merged(), 1);
  int64_t highest = 0;
  for (const auto& sample : course.memory()) highest = std::max(highest, SumOf(sample));
  EXPECT_EQ(highest, 9999);
}

}  // namespace
}  // namespace fsdpd
