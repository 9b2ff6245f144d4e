// Memory telemetry of a running job: where a step's peak occurred, and what holds memory.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <numeric>

#include "base/clock.h"
#include "base/rank/trace_file.h"
#include "base/temp_dir.h"
#include "fsdp/checkpoint/format/pickle.h"
#include "fsdp/engine/testing/test_job.h"
#include "fsdp/engine/trainer.h"
#include "fsdp/memory/host_caching_allocator.h"

namespace fsdpd {
namespace {

using ::testing::HasSubstr;

class MemoryRecord : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { InstallHostCachingAllocator(); }

  // Large enough that later steps are spikes.
  void HoldMoreFrom(int64_t step) {
    options_.on_step = [this, step](const v1::StepReport& report) {
      const int64_t bytes = 2 * report.memory().peak_bytes();
      if (report.step() == step) held_ = at::empty({bytes}, at::TensorOptions(at::kByte));
      return absl::OkStatus();
    };
  }

  std::unique_ptr<StepTraces> TracesOf(std::set<int64_t> memory_steps) {
    StepTraces::Options of;
    of.directory = dir_.path();
    of.memory = true;
    of.memory_steps = std::move(memory_steps);
    auto traces = std::make_unique<StepTraces>(std::move(of));
    options_.traces = {traces.get()};
    return traces;
  }

  absl::StatusOr<Pickle> FileOf(int64_t step) const {
    std::ifstream file(dir_.File(MemoryFileName(step, 0)), std::ios::binary);
    if (!file) return absl::NotFoundError("no file");
    return Pickle::Parse(std::string(std::istreambuf_iterator<char>(file), {}));
  }

  TempDir dir_;
  LocalJobOptions options_;
  at::Tensor held_;
};

// Allocated bytes, and those whose instruction is known.
struct Held {
  int64_t bytes = 0;
  int64_t known_bytes = 0;
  std::set<std::string> names;
};

Held HeldIn(const Pickle& file) {
  Held held;
  for (const PickleValue* segment : file.root().Find("segments")->items) {
    for (const PickleValue* block : segment->Find("blocks")->items) {
      if (block->Find("state")->text != "active_allocated") continue;
      held.bytes += block->Find("size")->integer;
      for (const PickleValue* frame : block->Find("frames")->items) {
        held.known_bytes += block->Find("size")->integer;
        held.names.insert(std::string(frame->Find("name")->text));
      }
    }
  }
  return held;
}

TEST_F(MemoryRecord, SpikeNamesItsInstruction) {
  HoldMoreFrom(4);
  const LocalJobResult result = Train(TestJob(), options_);
  const std::vector<v1::StepReport>& steps = result.reports[0];
  ASSERT_EQ(steps.size(), 6u);
  for (const int before : {0, 1, 2, 3}) EXPECT_FALSE(steps[before].memory().has_spike()) << before;
  ASSERT_TRUE(steps[4].memory().has_spike());
  EXPECT_THAT(steps[4].memory().spike().instruction(), HasSubstr("head"))
      << "where activations of all layers are still there, and the logits";
  EXPECT_EQ(steps[4].memory().spike().median_bytes(), steps[2].memory().peak_bytes());
  EXPECT_GT(steps[4].memory().spike().plan_bytes(), 0);
  EXPECT_EQ(steps[4].memory().spikes(), 1);
}

TEST_F(MemoryRecord, SnapshotMatchesTheReport) {
  const auto traces = TracesOf({2, 5});
  const LocalJobResult result = Train(TestJob(), options_);
  ASSERT_TRUE(traces->AwaitWritten(absl::Minutes(1)));
  for (const int64_t step : {2, 5}) {
    const auto file = FileOf(step);
    ASSERT_TRUE(file.ok()) << file.status();
    const Held held = HeldIn(*file);
    EXPECT_EQ(held.bytes, result.reports[0][step - 1].memory().allocated_bytes()) << step;
    std::set<std::string> names;
    for (const PickleValue* event : file->root().Find("device_traces")->items[0]->items) {
      for (const PickleValue* frame : event->Find("frames")->items)
        names.insert(std::string(frame->Find("name")->text));
    }
    EXPECT_THAT(names, ::testing::IsSupersetOf({"Forward layer.1 mb 0", "Backward layer.0 mb 0"})) << step;
  }
  EXPECT_FALSE(FileOf(3).ok());
}

TEST_F(MemoryRecord, WritesSnapshotsOfFirstSpikes) {
  HoldMoreFrom(4);
  const auto traces = TracesOf({});
  Train(TestJob(), options_);
  ASSERT_TRUE(traces->AwaitWritten(absl::Minutes(1)));
  EXPECT_FALSE(FileOf(4).ok());
  EXPECT_TRUE(FileOf(5).ok());
}

TEST_F(MemoryRecord, RecordsFromTheRequestOn) {
  StepTraces::Options of;
  of.directory = dir_.path();
  StepTraces traces(std::move(of));
  options_.traces = {&traces};
  options_.on_step = [&](const v1::StepReport& report) {
    if (report.step() == 2) traces.Ask(4, 1, /*memory=*/true);
    return absl::OkStatus();
  };
  Train(TestJob(), options_);
  ASSERT_TRUE(traces.AwaitWritten(absl::Minutes(1)));
  const auto file = FileOf(4);
  ASSERT_TRUE(file.ok()) << file.status();
  std::set<std::string> steps;
  for (const PickleValue* event : file->root().Find("device_traces")->items[0]->items) {
    for (const PickleValue* frame : event->Find("frames")->items)
      steps.insert(std::string(frame->Find("filename")->text));
  }
  EXPECT_THAT(steps, ::testing::ElementsAre("step 3", "step 4"));
}

// Memory of a step by component: persistent parts as planned, and the sum as in its report.
TEST_F(MemoryRecord, TimelinePeakMatchesTheReport) {
  FakeClock clock;
  std::vector<v1::StepTimeline> timelines;
  options_.clock = &clock;
  options_.on_step = [&](const v1::StepReport&) {
    clock.Advance(kTimelineInterval);
    return absl::OkStatus();
  };
  options_.on_timeline = [&](const v1::StepTimeline& timeline) {
    timelines.push_back(timeline);
    return absl::OkStatus();
  };
  const LocalJobResult result = Train(TestJob(), options_);
  const absl::StatusOr<Plan> plan = AcceptedPlan(TestJob());
  ASSERT_TRUE(plan.ok());
  ASSERT_EQ(timelines.size(), 6u);
  for (size_t s = 0; s < timelines.size(); ++s) {
    const v1::StepReport& report = result.reports[0][s];
    EXPECT_EQ(timelines[s].step(), report.step());
    EXPECT_EQ(timelines[s].step_seconds(), report.step_seconds());
    int64_t highest = 0;
    for (const auto& sample : timelines[s].memory())
      highest = std::max(highest, std::accumulate(sample.bytes().begin(), sample.bytes().end(), int64_t{0}));
    EXPECT_EQ(highest, report.memory().peak_bytes()) << report.step();
    for (const int stands : {0, 1}) {
      EXPECT_EQ(timelines[s].memory(0).bytes(stands), plan->memory.Of(timelines[s].components(stands)))
          << timelines[s].components(stands);
    }
  }
}

TEST_F(MemoryRecord, LimitsTimelinesToOnePerSecond) {
  FakeClock clock;
  std::vector<int64_t> steps;
  options_.clock = &clock;
  options_.on_step = [&](const v1::StepReport&) {
    clock.Advance(kTimelineInterval / 2);
    return absl::OkStatus();
  };
  options_.on_timeline = [&](const v1::StepTimeline& timeline) {
    steps.push_back(timeline.step());
    return absl::OkStatus();
  };
  Train(TestJob(), options_);
  EXPECT_THAT(steps, ::testing::ElementsAre(1, 3, 5));
}

}  // namespace
}  // namespace fsdpd
