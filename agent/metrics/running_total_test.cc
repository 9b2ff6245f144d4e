#include "agent/metrics/running_total.h"

#include <gtest/gtest.h>

namespace fsdpd {
namespace {

constexpr absl::Duration kAhead = absl::Seconds(1);

absl::Time At(double seconds) { return absl::UnixEpoch() + absl::Seconds(seconds); }

TEST(RunningTotal, InterpolatesBetweenReadings) {
  RunningTotal total;
  total.Add(At(0), 100);
  total.Add(At(1), 200);
  total.Add(At(2), 500);
  EXPECT_DOUBLE_EQ(total.Between(At(0), At(2), kAhead).value(), 400);
  EXPECT_DOUBLE_EQ(total.Between(At(0.5), At(1.5), kAhead).value(), 50 + 150);
  EXPECT_DOUBLE_EQ(total.Between(At(1.25), At(1.75), kAhead).value(), 150);
}

TEST(RunningTotal, ExtrapolatesForALimitedTime) {
  RunningTotal total;
  total.Add(At(0), 0);
  EXPECT_FALSE(total.Between(At(0), At(0.5), kAhead).has_value()) << "of one reading nothing follows";
  total.Add(At(1), 100);
  EXPECT_DOUBLE_EQ(total.Between(At(1), At(1.5), kAhead).value(), 50);
  EXPECT_FALSE(total.Between(At(1), At(2.5), kAhead).has_value());
}

TEST(RunningTotal, IsEmptyOutsideOfItsHistory) {
  RunningTotal total;
  for (int i = 0; i <= 1000; ++i) total.Add(At(i), i);
  EXPECT_FALSE(total.Between(At(-1), At(900), kAhead).has_value());
  EXPECT_FALSE(total.Between(At(600), At(900), kAhead).has_value());
  EXPECT_DOUBLE_EQ(total.Between(At(701), At(900), kAhead).value(), 199);
}

TEST(RunningTotal, CompactsConstantReadings) {
  RunningTotal total;
  for (int i = 0; i <= 9; ++i) total.Add(At(i), 5);
  total.Add(At(10), 15);
  EXPECT_DOUBLE_EQ(total.Between(At(0), At(9), kAhead).value(), 0);
  EXPECT_DOUBLE_EQ(total.Between(At(9), At(10), kAhead).value(), 10);
}

TEST(RunningTotal, RestartsAfterADecrease) {
  RunningTotal total;
  total.Add(At(0), 1000);
  total.Add(At(1), 2000);
  total.Add(At(2), 10);
  total.Add(At(3), 20);
  EXPECT_FALSE(total.Between(At(1), At(3), kAhead).has_value());
  EXPECT_DOUBLE_EQ(total.Between(At(2), At(3), kAhead).value(), 10);
}

}  // namespace
}  // namespace fsdpd
