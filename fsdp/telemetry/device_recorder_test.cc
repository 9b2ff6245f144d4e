#include "fsdp/telemetry/device_recorder.h"

#include <absl/time/clock.h>
#include <dlfcn.h>
#include <gtest/gtest.h>

#include "base/testing/fake_nvml.h"

namespace fsdpd {
namespace {

constexpr char kSecondGpu[] = "0000:3b:00.0";

class DeviceRecorderTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    library_ = dlopen("fsdp/telemetry/testing/libfake-cupti.so", RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(library_, nullptr) << dlerror();
    gpus_ = FakeNvml::Load("base/testing/libfake-nvidia-ml.so");
    ASSERT_NE(gpus_, nullptr);
  }
  void Kernel(int64_t begin, int64_t end) {
    using Function = void(const char*, uint32_t, uint32_t, uint64_t, uint64_t);
    reinterpret_cast<Function*>(dlsym(library_, "FakeKernel"))("gemm", 0, 7, static_cast<uint64_t>(begin),
                                                               static_cast<uint64_t>(end));
  }
  // A timeline from `begin` to now, with one slice that fills it.
  static Timeline Since(int64_t begin) {
    Timeline timeline;
    timeline.tracks = {"compute"};
    timeline.begin_unix_nanos = begin;
    timeline.seconds = static_cast<double>(absl::GetCurrentTimeNanos() - begin) * 1e-9;
    timeline.slices.push_back({0, "Forward", "Forward layer.0", 0, timeline.seconds});
    return timeline;
  }

  static void* library_;
  static FakeGpu* gpus_;
};

void* DeviceRecorderTest::library_ = nullptr;
FakeGpu* DeviceRecorderTest::gpus_ = nullptr;

TEST_F(DeviceRecorderTest, AddsKernelsAndCountersOfStep) {
  gpus_[1].power_milliwatts = 690'000;
  DeviceRecorder recorder(0, kSecondGpu);
  recorder.Record(true);
  const int64_t begin = absl::GetCurrentTimeNanos();
  Timeline timeline;
  Kernel(begin + 1000, begin + 2000);
  while (timeline.counters.size() < 3) {  // Until the thread has sampled the GPU.
    Kernel(absl::GetCurrentTimeNanos() + 1'000'000'000, absl::GetCurrentTimeNanos() + 1'000'000'001);
    timeline = Since(begin);
    recorder.AddTo(&timeline);
  }
  recorder.Record(false);
  ASSERT_EQ(timeline.tracks.size(), 2u);
  EXPECT_EQ(timeline.tracks[1], "GPU stream 7");
  EXPECT_EQ(timeline.slices[1].name, "gemm");
  EXPECT_EQ(timeline.slices[1].track, 1);
  EXPECT_NEAR(timeline.slices[1].start, 1e-6, 1e-9);
  EXPECT_NEAR(timeline.slices[1].seconds, 1e-6, 1e-9);
  EXPECT_EQ(timeline.counters[0].name, "power");
  EXPECT_EQ(timeline.counters[0].values[0].second, 690);
  EXPECT_GE(timeline.counters[0].values[0].first, 0);
  EXPECT_EQ(timeline.counters[1].values[0].second, 1980) << "megahertz";
  EXPECT_EQ(timeline.counters[2].values[0].second, static_cast<double>(int64_t{4} << 30));
  const std::string json = TraceJson({timeline});
  EXPECT_NE(json.find(R"("name":"power","pid":0)"), std::string::npos) << json;
  EXPECT_NE(json.find(R"("args":{"watts":690})"), std::string::npos) << json;
}

TEST_F(DeviceRecorderTest, RecordsOnlyWhileOn) {
  DeviceRecorder recorder(0, kSecondGpu);
  const int64_t begin = absl::GetCurrentTimeNanos();
  Kernel(begin + 10, begin + 20);
  recorder.Record(true);
  recorder.Record(true);
  recorder.Record(false);
  Kernel(begin + 30, begin + 40);
  Timeline timeline = Since(begin);
  recorder.AddTo(&timeline);
  EXPECT_EQ(timeline.tracks.size(), 1u);
}

TEST_F(DeviceRecorderTest, UnknownGpuHasNoCounters) {
  DeviceRecorder recorder(0, "0000:ff:00.0");
  recorder.Record(true);
  Timeline timeline = Since(absl::GetCurrentTimeNanos());
  recorder.AddTo(&timeline);
  EXPECT_TRUE(timeline.counters.empty());
}

}  // namespace
}  // namespace fsdpd
