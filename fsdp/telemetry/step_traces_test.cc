#include "fsdp/telemetry/step_traces.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <vector>

#include "base/rank/trace_file.h"
#include "base/temp_dir.h"

namespace fsdpd {
namespace {

Timeline Step(int64_t step) {
  Timeline timeline;
  timeline.step = step;
  timeline.tracks = {"compute"};
  timeline.slices.push_back({0, "Forward", "Forward layer.0", 0, 1});
  return timeline;
}

class StepTracesTest : public ::testing::Test {
 protected:
  StepTraces::Options Options(std::set<int64_t> steps) {
    StepTraces::Options options;
    options.directory = dir_.path();
    options.rank = 3;
    options.steps = std::move(steps);
    options.on_written = [this](const WrittenTrace& trace) {
      MutexLock lock(&mutex_);
      written_.push_back(trace);
    };
    return options;
  }
  std::vector<WrittenTrace> Written() {
    MutexLock lock(&mutex_);
    return written_;
  }

  const TempDir dir_;
  Mutex mutex_;
  std::vector<WrittenTrace> written_ ABSL_GUARDED_BY(mutex_);
};

TEST_F(StepTracesTest, WritesOnlyStepsOfSpec) {
  StepTraces traces(Options({2, 4}));
  for (int64_t step = 1; step <= 5; ++step) {
    EXPECT_EQ(traces.Takes(step), step == 2 || step == 4);
    if (step == 2 || step == 4) traces.Write(Step(step));
  }
  EXPECT_TRUE(traces.AwaitWritten(absl::Minutes(1)));
  const std::vector<WrittenTrace> written = Written();
  ASSERT_EQ(written.size(), 2u);
  for (const WrittenTrace& trace : written) {
    EXPECT_EQ(trace.error, "");
    EXPECT_FALSE(trace.asked);
    EXPECT_EQ(trace.path, dir_.File(TraceFileName(trace.step, 3)));
    std::ifstream file(trace.path);
    const std::string text(std::istreambuf_iterator<char>(file), {});
    EXPECT_EQ(static_cast<int64_t>(text.size()), trace.bytes);
    EXPECT_EQ(text, TraceJson({Step(trace.step)}, 3));
  }
  const std::filesystem::directory_iterator files(dir_.path());
  EXPECT_EQ(std::distance(begin(files), end(files)), 2) << "nothing else is left there";
}

TEST_F(StepTracesTest, WritesRequestedSteps) {
  StepTraces traces(Options({}));
  EXPECT_FALSE(traces.Takes(1));
  traces.Ask(3, 2);
  EXPECT_FALSE(traces.Takes(2));
  for (const int64_t step : {3, 4}) {
    ASSERT_TRUE(traces.Takes(step));
    traces.Write(Step(step));
  }
  EXPECT_FALSE(traces.Takes(5));
  EXPECT_TRUE(traces.AwaitWritten(absl::Minutes(1)));
  ASSERT_EQ(Written().size(), 2u);
  EXPECT_TRUE(Written()[0].asked);
  EXPECT_EQ(Written()[1].step, 4);
}

TEST_F(StepTracesTest, ReportsRequestForPastStep) {
  StepTraces traces(Options({}));
  EXPECT_FALSE(traces.Takes(5));
  traces.Ask(4, 3);
  EXPECT_TRUE(traces.Takes(6));
  ASSERT_EQ(Written().size(), 2u);
  for (const WrittenTrace& trace : Written()) {
    EXPECT_LT(trace.step, 6);
    EXPECT_TRUE(trace.asked);
    EXPECT_EQ(trace.error, "the request arrived after the step had ended");
  }
}

TEST_F(StepTracesTest, WritesMemoryWithAndWithoutTrace) {
  StepTraces::Options options = Options({4});
  options.memory = true;
  options.memory_steps = {2, 4};
  StepTraces traces(std::move(options));
  EXPECT_TRUE(traces.RecordsMemory());
  EXPECT_FALSE(traces.TakesMemory(1, /*spike=*/false));
  EXPECT_TRUE(traces.TakesMemory(2, /*spike=*/false));
  EXPECT_FALSE(traces.Takes(2));
  traces.WriteMemory(2, [] { return "two"; });
  ASSERT_TRUE(traces.Takes(4));
  traces.Write(Step(4), [] { return "four"; });
  ASSERT_TRUE(traces.AwaitWritten(absl::Minutes(1)));
  ASSERT_EQ(Written().size(), 2u);
  EXPECT_EQ(Written()[0].path, "") << "it is not traced";
  EXPECT_EQ(Written()[0].memory->path, dir_.File("memory_step_2_rank_3.pickle"));
  EXPECT_EQ(Written()[1].path, dir_.File(TraceFileName(4, 3)));
  EXPECT_EQ(Written()[1].memory->bytes, 4);
  std::ifstream file(Written()[1].memory->path);
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(file), {}), "four");
}

TEST_F(StepTracesTest, RecordsMemoryUntilRequestIsDone) {
  StepTraces traces(Options({}));
  EXPECT_FALSE(traces.RecordsMemory());
  traces.Ask(3, 1);
  EXPECT_FALSE(traces.RecordsMemory());
  traces.Ask(3, 2, /*memory=*/true);
  EXPECT_TRUE(traces.RecordsMemory());
  EXPECT_FALSE(traces.Takes(2));
  EXPECT_TRUE(traces.TakesMemory(3, /*spike=*/false));
  ASSERT_TRUE(traces.Takes(3));
  traces.Write(Step(3), [] { return "three"; });
  ASSERT_TRUE(traces.Takes(4)) << "it was submitted before it was asked for";
  EXPECT_FALSE(traces.RecordsMemory());
  traces.Write(Step(4));
  ASSERT_TRUE(traces.AwaitWritten(absl::Minutes(1)));
  ASSERT_EQ(Written().size(), 2u);
  EXPECT_EQ(Written()[0].memory->error, "");
  EXPECT_EQ(Written()[1].error, "");
  EXPECT_EQ(Written()[1].memory->error, "the request arrived while the step was running");
}

TEST_F(StepTracesTest, TakesFirstSpikesIfMemoryIsRecorded) {
  StepTraces plain(Options({}));
  EXPECT_FALSE(plain.TakesMemory(1, /*spike=*/true));
  StepTraces::Options options = Options({});
  options.memory = true;
  StepTraces traces(std::move(options));
  for (int64_t step = 1; step <= 5; ++step) EXPECT_EQ(traces.TakesMemory(step, /*spike=*/true), step <= 4);
}

TEST_F(StepTracesTest, ExpectsTraceOneStepAhead) {
  StepTraces traces(Options({5}));
  EXPECT_FALSE(traces.Expects(3, 3));
  EXPECT_TRUE(traces.Expects(4, 4)) << "it is the next";
  EXPECT_TRUE(traces.Expects(5, 6)) << "it is under way";
  EXPECT_FALSE(traces.Expects(6, 6));
  traces.Ask(100, 1);
  EXPECT_TRUE(traces.Expects(6, 6)) << "somebody waits for it";
  ASSERT_TRUE(traces.Takes(100));
  EXPECT_FALSE(traces.Expects(101, 101));
}

TEST_F(StepTracesTest, AddsLateDataBeforeWriting) {
  StepTraces traces(Options({1}));
  ASSERT_TRUE(traces.Takes(1));
  traces.Write(Step(1), nullptr, [](Timeline* timeline) { timeline->title = "completed"; });
  ASSERT_TRUE(traces.AwaitWritten(absl::Minutes(1)));
  std::ifstream file(Written()[0].path);
  const std::string text(std::istreambuf_iterator<char>(file), {});
  EXPECT_NE(text.find("completed"), std::string::npos);
}

// Regression test: the whole trace was lost.
TEST_F(StepTracesTest, DropsActivitiesOfOversizedTrace) {
  StepTraces traces(Options({1}));
  ASSERT_TRUE(traces.Takes(1));
  traces.Write(Step(1), nullptr, [](Timeline* timeline) {
    timeline->tracks.push_back("GPU stream 7");
    const std::string name(1 << 20, 'k');
    for (int i = 0; i < 65; ++i) timeline->slices.push_back({1, "kernel", name, 0.01 * i, 0.01});
    timeline->counters.push_back({"power", "watts", {{0, 700}}});
  });
  ASSERT_TRUE(traces.AwaitWritten(absl::Minutes(1)));
  EXPECT_EQ(Written()[0].error, "");
  std::ifstream file(Written()[0].path);
  const std::string text(std::istreambuf_iterator<char>(file), {});
  EXPECT_LT(text.size(), 10000u);
  EXPECT_NE(text.find("Forward layer.0"), std::string::npos);
  EXPECT_NE(text.find("watts"), std::string::npos);
  EXPECT_NE(text.find("without the device's activities"), std::string::npos) << text;
}

TEST_F(StepTracesTest, LimitsRequests) {
  StepTraces traces(Options({}));
  traces.Ask(1, int64_t{1} << 60);
  EXPECT_TRUE(traces.Takes(kMaxTracedSteps));
  EXPECT_FALSE(traces.Takes(kMaxTracedSteps + 1));
}

TEST_F(StepTracesTest, ReportsWriteError) {
  StepTraces::Options options = Options({1});
  options.directory = dir_.File("gone");
  StepTraces traces(std::move(options));
  traces.Write(Step(1));
  EXPECT_TRUE(traces.AwaitWritten(absl::Minutes(1)));
  ASSERT_EQ(Written().size(), 1u);
  EXPECT_NE(Written()[0].error.find("No such file or directory"), std::string::npos) << Written()[0].error;
}

TEST_F(StepTracesTest, WritesNothingWithoutDirectory) {
  StepTraces::Options options = Options({1});
  options.directory = "";
  StepTraces traces(std::move(options));
  traces.Write(Step(1));
  EXPECT_TRUE(traces.AwaitWritten(absl::Minutes(1)));
  ASSERT_EQ(Written().size(), 1u);
  EXPECT_EQ(Written()[0].error, "the agent did not provide a directory; upgrade the agent");
}

// A blocked on_written callback stands in for a hanging disk: both block the thread.
TEST_F(StepTracesTest, HangingDiskOnlyLosesTraces) {
  StepTraces::Options options = Options({});
  Mutex mutex;
  CondVar changed;
  bool began = false, hangs = true;
  options.on_written = [&, note = options.on_written](const WrittenTrace& trace) {
    if (trace.step == 1) {
      MutexLock lock(&mutex);
      began = true;
      changed.SignalAll();
      while (hangs) changed.Wait(&mutex);
    }
    note(trace);
  };
  StepTraces traces(std::move(options));
  traces.Write(Step(1));
  {
    MutexLock lock(&mutex);
    while (!began) changed.Wait(&mutex);
  }
  traces.Ask(2, kMaxTracedSteps);
  traces.Ask(2 + kMaxTracedSteps, 1);
  for (int64_t step = 2; step <= kMaxTracedSteps + 2; ++step) {
    ASSERT_TRUE(traces.Takes(step));
    traces.Write(Step(step));
  }
  traces.WriteMemory(100, [] { return "of a step that is not traced"; });
  traces.Write(Step(101), [] { return "and of one that is"; });
  ASSERT_EQ(Written().size(), 3u);
  EXPECT_EQ(Written()[0].step, kMaxTracedSteps + 2);
  EXPECT_EQ(Written()[0].error, "the disk is too slow: 16 traces are queued");
  EXPECT_TRUE(Written()[0].asked);
  EXPECT_FALSE(Written()[0].memory.has_value());
  EXPECT_EQ(Written()[1].error, "") << "no trace of it was to be written";
  EXPECT_EQ(Written()[1].memory->error, Written()[0].error);
  EXPECT_EQ(Written()[2].error, Written()[0].error);
  EXPECT_EQ(Written()[2].memory->error, Written()[0].error);
  EXPECT_FALSE(traces.AwaitWritten(absl::ZeroDuration()));
  {
    MutexLock lock(&mutex);
    hangs = false;
    changed.SignalAll();
  }
  EXPECT_TRUE(traces.AwaitWritten(absl::Minutes(1))) << "of what was given up nothing is left to wait for";
  EXPECT_EQ(Written().size(), 4u);
}

TEST_F(StepTracesTest, LimitsNumberOfFiles) {
  StepTraces traces(Options({}));
  for (int64_t step = 1; step <= kMaxTraceFiles + 1; ++step) {
    traces.Write(Step(step));
    ASSERT_TRUE(traces.AwaitWritten(absl::Minutes(1)));
  }
  ASSERT_EQ(Written().size(), static_cast<size_t>(kMaxTraceFiles + 1));
  EXPECT_EQ(Written()[kMaxTraceFiles - 1].error, "");
  EXPECT_EQ(Written()[kMaxTraceFiles].error, "the limit of 256 traces per rank and attempt is reached");
}

}  // namespace
}  // namespace fsdpd
