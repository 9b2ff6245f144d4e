#include "fsdp/plan/predict/device_profile.h"

#include <gtest/gtest.h>

#include <limits>

namespace fsdpd {
namespace {

TEST(DeviceProfile, ShippedProfilesAreValid) {
  ASSERT_FALSE(ProfileNames().empty());
  for (const std::string& name : ProfileNames()) {
    ASSERT_NE(FindProfile(name), nullptr);
    EXPECT_TRUE(CheckProfile(*FindProfile(name)).empty()) << name;
  }
  EXPECT_EQ(FindProfile("abacus"), nullptr);
}

// A field that is missing in the table would not be read from a file.
TEST(DeviceProfile, TableCoversEveryField) {
  EXPECT_EQ(sizeof(DeviceProfile), sizeof(std::string) + ProfileFields().size() * sizeof(double));
}

TEST(DeviceProfile, ReportsInvalidValuesByKey) {
  DeviceProfile profile = *FindProfile("cpu");
  profile.memory_bytes_per_second = 0;
  profile.compute_slowdown = 0.5;
  profile.fp32_matmul_flops = std::numeric_limits<double>::infinity();
  profile.collective_latency_seconds = 0;  // Legal.
  const Violations violations = CheckProfile(profile);
  ASSERT_EQ(violations.size(), 3u);
  EXPECT_EQ(violations[0].field, "fp32_matmul_flops");
  EXPECT_EQ(violations[1].field, "memory_bytes_per_second");
  EXPECT_EQ(violations[2].field, "compute_slowdown");
  EXPECT_EQ(violations[2].reason, "is 0.5 and must be at least 1");
}

}  // namespace
}  // namespace fsdpd
