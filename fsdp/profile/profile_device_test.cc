#include "fsdp/profile/profile_device.h"

#include <gtest/gtest.h>

#include "fsdp/torch/cuda_device.h"

namespace fsdpd {
namespace {

ProfileOptions Small(int ranks) {
  ProfileOptions options;
  options.ranks = ranks;
  options.compute = {16, 16, 16, /*sequence=*/8, /*heads=*/2, /*head_size=*/8, /*elements=*/1000};
  options.links = {/*large_elements=*/1000, /*small_elements=*/1};
  options.runs = 3;
  return options;
}

TEST(ProfileDevice, TwoRanksYieldUsableProfile) {
  const auto measured = ProfileDevice(Small(2));
  ASSERT_TRUE(measured.ok()) << measured.status();
  const DeviceProfile& profile = measured->profile;
  for (const Violation& violation : CheckProfile(profile))
    ADD_FAILURE() << violation.field << " " << violation.reason;
  EXPECT_EQ(profile.name, "measured cpu x2");
  EXPECT_GT(profile.memory_bytes, 1e6);
  const DeviceProfile& shipped = *FindProfile("cpu");
  EXPECT_NE(profile.collective_latency_seconds, shipped.collective_latency_seconds);
  EXPECT_EQ(profile.outer_gather_bytes_per_second, shipped.outer_gather_bytes_per_second) << "not measured";
  EXPECT_GE(profile.fp32_peak_flops, profile.fp32_matmul_flops);
  ASSERT_EQ(measured->notes.size(), 1u);
  EXPECT_NE(measured->notes[0].find("profile cpu"), std::string::npos);
}

// Regression test: it printed nothing until it was done.
TEST(ProfileDevice, ReportsStagesBeforeTheyStart) {
  for (const int ranks : {1, 2}) {
    ProfileOptions options = Small(ranks);
    std::vector<Stage> stages;
    options.on_stage = [&](const Stage& stage) { stages.push_back(stage); };
    ASSERT_TRUE(ProfileDevice(options).ok());
    ASSERT_EQ(stages.size(), ranks == 1 ? 5u : 9u);
    for (size_t i = 0; i < stages.size(); ++i) {
      EXPECT_EQ(stages[i].number, static_cast<int>(i + 1));
      EXPECT_EQ(stages[i].of, static_cast<int>(stages.size()));
      EXPECT_NE(stages[i].what, "");
    }
    EXPECT_EQ(stages[1].what, "matrix products in fp32");
  }
}

TEST(ProfileDevice, OneRankMeasuresNoLinks) {
  const auto measured = ProfileDevice(Small(1));
  ASSERT_TRUE(measured.ok()) << measured.status();
  EXPECT_EQ(CheckProfile(measured->profile).size(), 0u);
  EXPECT_EQ(measured->profile.node_gather_bytes_per_second, FindProfile("cpu")->node_gather_bytes_per_second);
  EXPECT_EQ(measured->notes.size(), 2u);
}

TEST(ProfileDevice, RejectsMoreRanksThanDevices) {
  ProfileOptions options = Small(CudaDeviceCount() + 1);
  options.device = DeviceKind::kCuda;
  EXPECT_TRUE(absl::IsFailedPrecondition(ProfileDevice(options).status()));
}

TEST(ProfileDevice, DefaultsAreComplete) {
  const ProfileOptions options = DefaultProfileOptions(DeviceKind::kCpu);
  EXPECT_EQ(options.ranks, 2);
  EXPECT_EQ(DefaultProfileOptions(DeviceKind::kCuda).ranks, CudaDeviceCount());
  EXPECT_GT(options.runs, 0);
}

}  // namespace
}  // namespace fsdpd
