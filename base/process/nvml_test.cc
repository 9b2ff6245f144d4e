#include "base/process/nvml.h"

#include <gtest/gtest.h>

#include "base/testing/fake_nvml.h"

namespace fsdpd {
namespace {

class NvmlTest : public testing::Test {
 protected:
  void SetUp() override {
    gpus_ = FakeNvml::Load("base/testing/libfake-nvidia-ml.so");
    ASSERT_NE(gpus_, nullptr);
    for (int i = 0; i < kFakeGpus; ++i) gpus_[i] = FakeGpu();
    absl::StatusOr<std::unique_ptr<Nvml>> nvml = Nvml::Open();
    ASSERT_TRUE(nvml.ok()) << nvml.status();
    nvml_ = *std::move(nvml);
  }

  FakeGpu* gpus_ = nullptr;
  std::unique_ptr<Nvml> nvml_;
};

TEST_F(NvmlTest, ReadsInSiUnits) {
  ASSERT_EQ(nvml_->gpus(), kFakeGpus);
  gpus_[1].power_milliwatts = 690'500;
  gpus_[1].energy_millijoules = 5'500;
  gpus_[1].slowdown_bits = 0x4 | 0x40 | 0x1;
  gpus_[1].uncorrected_ecc_errors = 2;
  const GpuReading reading = nvml_->Read(1);
  EXPECT_DOUBLE_EQ(reading.power_watts.value(), 690.5);
  EXPECT_DOUBLE_EQ(nvml_->InstantPowerWatts(1).value(), 690.5) << "of a card without the field of that name";
  EXPECT_DOUBLE_EQ(reading.energy_joules.value(), 5.5);
  EXPECT_DOUBLE_EQ(reading.sm_clock_hertz.value(), 1.98e9);
  EXPECT_EQ(reading.temperature_celsius.value(), 40);
  EXPECT_EQ(reading.used_bytes.value(), int64_t{4} << 30) << "with the driver's own";
  EXPECT_EQ(reading.corrected_ecc_errors.value(), 0);
  EXPECT_EQ(reading.uncorrected_ecc_errors.value(), 2);
  EXPECT_TRUE((*reading.slowdowns)[static_cast<int>(GpuSlowdown::kPowerCap)]);
  EXPECT_TRUE((*reading.slowdowns)[static_cast<int>(GpuSlowdown::kHardwareThermal)]);
  EXPECT_FALSE((*reading.slowdowns)[static_cast<int>(GpuSlowdown::kHardware)]);
}

TEST_F(NvmlTest, MissingReadingsAreEmpty) {
  gpus_[0].tells = false;
  const GpuReading reading = nvml_->Read(0);
  EXPECT_FALSE(reading.power_watts || reading.energy_joules || reading.sm_clock_hertz || reading.slowdowns ||
               reading.temperature_celsius || reading.corrected_ecc_errors);
  EXPECT_FALSE(nvml_->InstantPowerWatts(0).has_value());
  EXPECT_TRUE(reading.used_bytes.has_value());
}

TEST_F(NvmlTest, CountsActiveNvLinks) {
  gpus_[0].nvlinks_down = 3;
  EXPECT_EQ(nvml_->NvLinksUp(0), 15);
  EXPECT_EQ(nvml_->NvLinksUp(1), 18);
  gpus_[1].nvlinks = 0;
  EXPECT_EQ(nvml_->NvLinksUp(1), std::nullopt);
}

TEST_F(NvmlTest, CountsXidsOncePerGpu) {
  gpus_[1].xids = 3;
  EXPECT_EQ(nvml_->TakeXids().value(), (std::vector<int64_t>{0, 3}));
  EXPECT_EQ(nvml_->TakeXids().value(), (std::vector<int64_t>{0, 0}));
}

TEST_F(NvmlTest, IgnoresXidsOfPrograms) {
  for (const uint64_t xid : {13, 31, 43, 45, 68, 109}) {
    gpus_[0].xid = xid;
    gpus_[0].xids = 2;
    EXPECT_EQ(nvml_->TakeXids().value(), (std::vector<int64_t>{0, 0})) << xid;
  }
  gpus_[0].xid = 48;
  gpus_[0].xids = 2;
  EXPECT_EQ(nvml_->TakeXids().value(), (std::vector<int64_t>{2, 0}));
}

TEST_F(NvmlTest, FindsVisibleGpus) {
  EXPECT_EQ(VisibleGpus(*nvml_, nullptr).value(), (std::vector<int>{0, 1}));
  EXPECT_EQ(VisibleGpus(*nvml_, "1, 0").value(), (std::vector<int>{1, 0}));
  EXPECT_EQ(VisibleGpus(*nvml_, "GPU-second").value(), (std::vector<int>{1}));
  EXPECT_TRUE(VisibleGpus(*nvml_, "")->empty());
  EXPECT_EQ(VisibleGpus(*nvml_, "2").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(VisibleGpus(*nvml_, "MIG-1").status().message(),
            "CUDA_VISIBLE_DEVICES=MIG-1: 'MIG-1' is not a GPU of this node");
  EXPECT_FALSE(VisibleGpus(*nvml_, "GPU-third").ok());
  EXPECT_EQ(nvml_->FindByBusId("0000:3b:00.0").value(), 1);
  EXPECT_EQ(nvml_->FindByBusId("0000:ff:00.0").status().code(), absl::StatusCode::kNotFound);
}

TEST_F(NvmlTest, ReadsMemory) {
  const auto memories = ReadGpus();
  ASSERT_TRUE(memories.ok());
  ASSERT_EQ(memories->size(), 2u);
  EXPECT_EQ((*memories)[1].total_bytes, static_cast<int64_t>(kFakeGpuBytes));
  EXPECT_EQ((*memories)[1].reserved_bytes, static_cast<int64_t>(kFakeReservedBytes));
}

}  // namespace
}  // namespace fsdpd
