#include "agent/gpu/gpu_watch.h"

#include <gtest/gtest.h>
#include <prometheus/text_serializer.h>

#include <memory>
#include <thread>

#include "base/testing/fake_nvml.h"

namespace fsdpd {
namespace {

const RankId kRank{{"job", 1}, 3};
constexpr char kLibrary[] = "base/testing/libfake-nvidia-ml.so";

class GpuWatchTest : public testing::Test {
 protected:
  void SetUp() override {
    gpus_ = FakeNvml::Load(kLibrary);
    ASSERT_NE(gpus_, nullptr);
    for (int i = 0; i < kFakeGpus; ++i) gpus_[i] = FakeGpu();
    driver_ = FakeNvml::LoadDriver(kLibrary);
    watch_ = std::make_shared<GpuWatch>("node-0", &clock_);
    ASSERT_TRUE(watch_->Open().ok());
  }

  // Samples every 1/8 s, with `watts` for the first GPU.
  void RunFor(int eighths, int watts) {
    for (int i = 0; i < eighths; ++i) {
      clock_.Advance(absl::Milliseconds(125));
      gpus_[0].energy_millijoules += 125 * watts;
      watch_->Sample();
    }
  }

  v1::StepReport StepOf(double seconds) {
    v1::StepReport report;
    report.set_step_seconds(seconds);
    report.set_unix_nanos(absl::ToUnixNanos(clock_.Wall()));
    return report;
  }

  bool Mentions(const std::string& line) {
    const std::string text = prometheus::TextSerializer().Serialize(watch_->Collect());
    return text.find(line) != std::string::npos;
  }

  FakeGpu* gpus_ = nullptr;
  FakeClock clock_;
  FakeNvml::Driver* driver_ = nullptr;
  std::shared_ptr<GpuWatch> watch_;
};

TEST_F(GpuWatchTest, PreflightHasDeviceStateAndSlowdowns) {
  gpus_[0].uncorrected_ecc_errors = 2;
  gpus_[0].nvlinks_down = 1;
  watch_->Sample();
  v1::PreflightDevice described;
  watch_->Describe(0, &described);
  EXPECT_EQ(described.memory_bytes(), static_cast<int64_t>(kFakeGpuBytes));
  EXPECT_EQ(described.used_bytes(), static_cast<int64_t>(gpus_[0].used_bytes + kFakeReservedBytes));
  EXPECT_EQ(described.uncorrected_ecc_errors(), 2);
  EXPECT_EQ(described.nvlinks_up(), 17);
  const absl::Time begin = clock_.Wall();
  gpus_[0].slowdown_bits = 0x40;
  RunFor(8, 700);
  watch_->Ran(0, begin, clock_.Wall(), &described);
  EXPECT_NEAR(described.sm_clock_hertz(), 1980e6, 1e6);
  ASSERT_EQ(described.slowdowns_size(), 1);
  EXPECT_EQ(described.slowdowns(0).reason(), "hardware_thermal");
  EXPECT_NEAR(described.slowdowns(0).seconds(), 1, 0.13);
  v1::PreflightDevice unknown;
  watch_->Describe(7, &unknown);
  EXPECT_EQ(unknown.ByteSizeLong(), 0u);
}

TEST_F(GpuWatchTest, StepHasItsEnergyOnly) {
  watch_->Sample();
  RunFor(8, 100);
  RunFor(4, 700);
  v1::StepReport report = StepOf(0.5);
  watch_->Stepped(0, &report);
  EXPECT_NEAR(report.power().energy_joules(), 350, 1e-6);
  EXPECT_NEAR(report.power().sm_clock_hertz(), 1.98e9, 1e3);
  EXPECT_EQ(report.power().slowdowns_size(), 0);
  EXPECT_TRUE(Mentions(
      "fsdpd_gpu_step_energy_joules{fsdpd_node=\"node-0\",device=\"cuda:0\",fsdpd_job=\"\",rank=\"\"} 350"));
  EXPECT_FALSE(Mentions("fsdpd_gpu_step_energy_joules{fsdpd_node=\"node-0\",device=\"cuda:1\""));
}

TEST_F(GpuWatchTest, StepExcludesTheEvaluation) {
  watch_->Sample();
  RunFor(8, 700);
  RunFor(8, 100);
  v1::StepReport report = StepOf(1);
  report.mutable_evaluation()->set_seconds(1);
  watch_->Stepped(0, &report);
  EXPECT_NEAR(report.power().energy_joules(), 700, 1e-6);
}

TEST_F(GpuWatchTest, CountsSlowdownSecondsByReason) {
  watch_->Sample();
  RunFor(8, 100);
  gpus_[0].slowdown_bits = 0x4;
  gpus_[0].sm_clock_megahertz = 1480;
  RunFor(8, 690);
  v1::StepReport report = StepOf(2);
  watch_->Stepped(0, &report);
  EXPECT_NEAR(report.power().sm_clock_hertz(), 1.73e9, 1e3);
  ASSERT_EQ(report.power().slowdowns_size(), 1);
  EXPECT_EQ(report.power().slowdowns(0).reason(), "power_cap");
  EXPECT_NEAR(report.power().slowdowns(0).seconds(), 1, 1e-6);
  EXPECT_TRUE(Mentions(
      "fsdpd_gpu_slowdown_seconds_total{fsdpd_node=\"node-0\",device=\"cuda:0\",reason=\"power_cap\"}"
      " 1"));
  EXPECT_TRUE(Mentions("device=\"cuda:0\",reason=\"hardware_thermal\"} 0"));
}

// The energy counter is updated every 100 ms, so a reading may equal the previous one.
TEST_F(GpuWatchTest, InterpolatesInfrequentCounterUpdates) {
  watch_->Sample();
  for (int i = 0; i < 5; ++i) {
    clock_.Advance(absl::Milliseconds(100));
    watch_->Sample();
    clock_.Advance(absl::Milliseconds(100));
    gpus_[0].energy_millijoules += 100'000;
    watch_->Sample();
  }
  v1::StepReport report = StepOf(0.1);
  watch_->Stepped(0, &report);
  EXPECT_NEAR(report.power().energy_joules(), 50, 1e-6);
}

TEST_F(GpuWatchTest, OutsideMemoryExcludesTheRank) {
  watch_->Sample();
  EXPECT_TRUE(
      Mentions("fsdpd_gpu_memory_used_bytes{fsdpd_node=\"node-0\",device=\"cuda:0\",fsdpd_job=\"\",rank=\"\"}"
               " 4294967296"));
  EXPECT_TRUE(
      Mentions("fsdpd_gpu_memory_bytes{fsdpd_node=\"node-0\",device=\"cuda:0\",fsdpd_job=\"\",rank=\"\"} "));
  watch_->Launched(0, kRank);
  EXPECT_FALSE(Mentions("fsdpd_gpu_memory_outside_bytes")) << "no rank has said what it holds";
  v1::StepReport report = StepOf(0.1);
  report.mutable_memory()->set_reserved_bytes(int64_t{3} << 30);
  report.mutable_memory()->set_allocator_retries(2);
  report.mutable_memory()->set_out_of_memory(1);
  watch_->Stepped(0, &report);
  EXPECT_TRUE(
      Mentions("fsdpd_gpu_memory_outside_bytes{fsdpd_node=\"node-0\",device=\"cuda:0\",fsdpd_job=\"job\","
               "rank=\"3\"} 1073741824"));
  EXPECT_TRUE(
      Mentions("fsdpd_gpu_allocator_retries_total{fsdpd_node=\"node-0\",device=\"cuda:0\",fsdpd_job=\"job\","
               "rank=\"3\"} 2"));
  EXPECT_TRUE(
      Mentions("fsdpd_gpu_out_of_memory_total{fsdpd_node=\"node-0\",device=\"cuda:0\",fsdpd_job=\"job\",rank="
               "\"3\"} 1"));
  watch_->Ended(0, kRank);
  EXPECT_FALSE(Mentions("fsdpd_gpu_memory_outside_bytes")) << "and none is there";
}

TEST_F(GpuWatchTest, JobSeriesNameTheRankAndDeviceSeriesDoNot) {
  RunFor(8, 100);
  const std::string card = "{fsdpd_node=\"node-0\",device=\"cuda:0\"";
  EXPECT_TRUE(Mentions("fsdpd_gpu_power_watts" + card + ",fsdpd_job=\"\",rank=\"\"} 100")) << "idle";
  watch_->Launched(0, kRank);
  v1::StepReport report = StepOf(0.5);
  watch_->Stepped(0, &report);
  for (const char* name :
       {"power_watts", "sm_clock_hertz", "memory_used_bytes", "memory_bytes", "memory_outside_bytes",
        "allocator_retries_total", "out_of_memory_total", "step_energy_joules", "step_sm_clock_hertz"})
    EXPECT_TRUE(Mentions(std::string("fsdpd_gpu_") + name + card + ",fsdpd_job=\"job\",rank=\"3\"} "))
        << name;
  EXPECT_TRUE(Mentions("fsdpd_gpu_energy_joules_total" + card + "} "));
  EXPECT_FALSE(Mentions("device=\"cuda:1\",fsdpd_job=\"job\""));
  const RankId next{{"next", 1}, 0};
  watch_->Launched(0, next);
  EXPECT_FALSE(Mentions("fsdpd_gpu_step_energy_joules")) << "it has made none";
  watch_->Ended(0, kRank);
  EXPECT_TRUE(Mentions("fsdpd_gpu_power_watts" + card + ",fsdpd_job=\"next\",rank=\"0\"} 100"))
      << "told late: the card is another's";
  watch_->Ended(0, next);
  EXPECT_TRUE(Mentions("fsdpd_gpu_power_watts" + card + ",fsdpd_job=\"\",rank=\"\"} 100"));
}

TEST_F(GpuWatchTest, MissingReadingsHaveNoSeries) {
  gpus_[1].tells = false;
  gpus_[0].xids = 2;
  gpus_[0].uncorrected_ecc_errors = 1;
  watch_->Sample();
  RunFor(1, 100);
  EXPECT_TRUE(Mentions(
      "fsdpd_gpu_power_watts{fsdpd_node=\"node-0\",device=\"cuda:0\",fsdpd_job=\"\",rank=\"\"} 100"));
  EXPECT_TRUE(
      Mentions("fsdpd_gpu_ecc_errors_total{fsdpd_node=\"node-0\",device=\"cuda:0\",kind=\"uncorrected\"} 1"));
  EXPECT_TRUE(Mentions("fsdpd_gpu_xid_errors_total{fsdpd_node=\"node-0\",device=\"cuda:0\"} 2"));
  for (const char* name : {"power_watts", "energy_joules_total", "sm_clock_hertz", "slowdown_seconds_total",
                           "temperature_celsius", "ecc_errors_total"})
    EXPECT_FALSE(Mentions(std::string("fsdpd_gpu_") + name + "{fsdpd_node=\"node-0\",device=\"cuda:1\""))
        << name;
  v1::StepReport report = StepOf(0.1);
  watch_->Stepped(1, &report);
  EXPECT_FALSE(report.has_power());
  watch_->Stepped(2, &report);  // No such device: the agent was given more slots than CUDA shows.
  EXPECT_FALSE(report.has_power());
}

TEST_F(GpuWatchTest, StaleReadingsHaveNoSeries) {
  watch_->Sample();
  clock_.Advance(absl::Seconds(2));
  EXPECT_TRUE(Mentions("fsdpd_gpu_power_watts{"));
  clock_.Advance(absl::Milliseconds(1));
  EXPECT_FALSE(Mentions("fsdpd_gpu_"));
  watch_->Sample();
  EXPECT_TRUE(Mentions("fsdpd_gpu_power_watts{"));
}

TEST_F(GpuWatchTest, SamplesOnceStarted) {
  watch_ = std::make_shared<GpuWatch>("node-0", &clock_);
  watch_->Start();
  while (!Mentions("fsdpd_gpu_power_watts{")) std::this_thread::yield();
  watch_->Stop();
  watch_->Stop();
}

TEST_F(GpuWatchTest, HangingDriverBlocksNothing) {
  driver_->hangs = true;
  watch_ = std::make_shared<GpuWatch>("node-0", &clock_);
  watch_->Start();
  while (driver_->waiting == 0) std::this_thread::yield();
  EXPECT_FALSE(Mentions("fsdpd_gpu_"));
  watch_->Stop();
  EXPECT_EQ(driver_->waiting, 1) << "nobody waited for it";
  const std::weak_ptr<GpuWatch> left = watch_;
  watch_.reset();
  EXPECT_FALSE(left.expired()) << "the thread has what it needs";
  driver_->hangs = false;
  while (!left.expired()) std::this_thread::yield();
}

}  // namespace
}  // namespace fsdpd
