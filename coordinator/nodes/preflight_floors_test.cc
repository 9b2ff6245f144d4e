#include "coordinator/nodes/preflight_floors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fsdpd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

v1::PreflightResult Sound(const std::string& name, int devices = 2) {
  v1::PreflightResult result;
  for (int i = 0; i < devices; ++i) {
    v1::PreflightDevice* device = result.add_devices();
    device->set_device(i);
    device->set_name(name);
    device->set_matmul_flops(660e12);
    device->set_memory_bytes_per_second(4e12);
    if (devices > 1) device->set_all_gather_bytes_per_second(300e9);
    for (int other = 0; other < devices; ++other) {
      if (other == i) continue;
      device->add_pairs()->set_device(other);
      device->mutable_pairs()->rbegin()->set_bytes_per_second(250e9);
    }
    device->set_memory_bytes(int64_t{141} << 30);
    device->set_used_bytes(int64_t{1} << 30);
    device->set_uncorrected_ecc_errors(0);
    device->set_nvlinks_up(18);
  }
  return result;
}

TEST(PreflightFloors, NamesFloorsOfAbsentDevices) {
  const std::vector<PreflightFloor> floors = {{"h200", "matmul_tflops", 900},
                                              {"nvidia h200", "all_gather_gb_per_s", 1}};
  EXPECT_EQ(UnmatchedFloors(Sound("NVIDIA H200"), floors),
            "--preflight-floor: no device of the node is called 'h200' (got 'NVIDIA H200')");
  EXPECT_EQ(UnmatchedFloors(Sound("h200"), {floors[0]}), "");
  EXPECT_EQ(UnmatchedFloors({}, floors), "") << "nothing was measured";
}

TEST(PreflightFloors, HealthyCardPasses) {
  EXPECT_THAT(MissedFloors(Sound("NVIDIA H200"), {}), IsEmpty());
  EXPECT_THAT(MissedFloors(Sound("NVIDIA H100 80GB HBM3"), {}), IsEmpty());
  EXPECT_THAT(MissedFloors(Sound("NVIDIA H200", 1), {}), IsEmpty()) << "a single device has no links";
}

TEST(PreflightFloors, ReportsSlowCardWithFloorAndSlowdown) {
  v1::PreflightResult result = Sound("NVIDIA H200");
  v1::PreflightDevice* device = result.mutable_devices(1);
  device->set_matmul_flops(402e12);
  device->set_sm_clock_hertz(1155e6);
  device->add_slowdowns()->set_reason("hardware_thermal");
  device->mutable_slowdowns(0)->set_seconds(2.94);
  device->add_slowdowns()->set_reason("power_brake");
  device->mutable_slowdowns(1)->set_seconds(1);
  EXPECT_THAT(
      MissedFloors(result, {}),
      ElementsAre("device 1: product rate 402 TFLOP/s at 1155 MHz slowed down by hardware_thermal for "
                  "2.9 s, power_brake for 1.0 s, floor 540"));
}

TEST(PreflightFloors, ChecksEveryRateAndNamesSlowPair) {
  v1::PreflightResult result = Sound("NVIDIA H200");
  result.mutable_devices(0)->set_memory_bytes_per_second(2e12);
  result.mutable_devices(0)->set_all_gather_bytes_per_second(40e9);
  result.mutable_devices(1)->mutable_pairs(0)->set_bytes_per_second(12.3e9);
  EXPECT_THAT(MissedFloors(result, {}),
              ElementsAre("device 0: memory rate 2000 GB/s, floor 3200",
                          "device 0: ring bandwidth 40 GB/s, floor 180",
                          "device 1: pair bandwidth 12 GB/s with device 0, floor 150"));
  result = Sound("NVIDIA H200");
  result.mutable_devices(0)->set_matmul_flops(std::nan(""));
  EXPECT_EQ(MissedFloors(result, {}).size(), 1u) << "NaN is below every floor";
}

TEST(PreflightFloors, UnknownDeviceIsCheckedByDriverDataOnly) {
  v1::PreflightResult result = Sound("NVIDIA H100 PCIe");
  for (auto& device : *result.mutable_devices()) device.set_matmul_flops(1);
  EXPECT_THAT(MissedFloors(result, {}), IsEmpty());
  result.mutable_devices(0)->set_uncorrected_ecc_errors(3);
  result.mutable_devices(0)->set_used_bytes(int64_t{20} << 30);
  result.mutable_devices(1)->set_nvlinks_up(17);
  EXPECT_THAT(MissedFloors(result, {}),
              ElementsAre("device 0: 3 uncorrected memory errors since its driver was loaded (want 0)",
                          "device 0: 20.0 GiB of its memory in use by other processes (want at most 14.1)",
                          "device 1: 17 NVLinks are up (want 18, as of another device)"));
}

TEST(PreflightFloors, MissingDriverDataPasses) {
  v1::PreflightResult result = Sound("NVIDIA H200");
  for (auto& device : *result.mutable_devices()) {
    device.clear_memory_bytes();
    device.clear_used_bytes();
    device.clear_uncorrected_ecc_errors();
  }
  result.mutable_devices(0)->clear_nvlinks_up();
  EXPECT_THAT(MissedFloors(result, {}), IsEmpty());
}

TEST(PreflightFloors, FlagFloorsOverrideBuiltinFloors) {
  const auto strict = ParsePreflightFloor("nvidia h200:matmul_tflops=700");
  const auto none = ParsePreflightFloor("NVIDIA H200:matmul_tflops=0");
  const auto cpu = ParsePreflightFloor("cpu:matmul_tflops=0.5");
  ASSERT_TRUE(strict.ok() && none.ok() && cpu.ok());
  EXPECT_EQ(MissedFloors(Sound("NVIDIA H200"), {*strict}).size(), 2u);
  EXPECT_THAT(MissedFloors(Sound("NVIDIA H200"), {*strict, *none}), IsEmpty());
  v1::PreflightResult slow = Sound("cpu", 1);
  slow.mutable_devices(0)->set_matmul_flops(45e9);
  EXPECT_THAT(MissedFloors(slow, {*cpu}), ElementsAre("device 0: product rate 0.045 TFLOP/s, floor 0.5"));
}

TEST(PreflightFloors, ReportsFailedMeasurementFirst) {
  v1::PreflightResult result = Sound("NVIDIA H200", 1);
  result.set_error("device 1 was not done after 2 m 00 s");
  result.mutable_devices(0)->set_matmul_flops(1e12);
  EXPECT_THAT(MissedFloors(result, {}), ElementsAre("device 1 was not done after 2 m 00 s",
                                                    "device 0: product rate 1 TFLOP/s, floor 540"));
}

TEST(PreflightFloors, RejectsInvalidFloors) {
  for (const auto& [text, why] : std::vector<std::pair<std::string, std::string>>{
           {"cpu", "is not DEVICE:MEASURE=NUMBER"},
           {":matmul_tflops=1", "is not DEVICE:MEASURE=NUMBER"},
           {"cpu:matmul=1", "'matmul' is not a measure; use one of matmul_tflops, memory_gb_per_s"},
           {"cpu:matmul_tflops=", "'' is not a number of at least 0"},
           {"cpu:matmul_tflops=-1", "'-1' is not a number of at least 0"},
           {"cpu:matmul_tflops=inf", "'inf' is not a number of at least 0"}}) {
    EXPECT_THAT(std::string(ParsePreflightFloor(text).status().message()), HasSubstr(why));
  }
}

}  // namespace
}  // namespace fsdpd
