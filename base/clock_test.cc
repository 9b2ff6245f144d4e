#include "base/clock.h"

#include <gtest/gtest.h>

namespace fsdpd {
namespace {

TEST(FakeClock, StepWallChangesTheWallClockOnly) {
  FakeClock clock;
  const absl::Time now = clock.Now(), wall = clock.Wall();
  clock.StepWall(-absl::Seconds(40));
  EXPECT_EQ(clock.Now(), now);
  EXPECT_EQ(clock.Wall(), wall - absl::Seconds(40));
  clock.Advance(absl::Seconds(1));
  EXPECT_EQ(clock.Now(), now + absl::Seconds(1));
  EXPECT_EQ(clock.WallOf(now), wall - absl::Seconds(40));
}

TEST(RealClock, RealClockIsMonotonicAndHasTheDate) {
  const absl::Time before = Clock::Real()->Now();
  EXPECT_LE(before, Clock::Real()->Now());
  EXPECT_GT(Clock::Real()->Wall(), absl::FromCivil(absl::CivilDay(2024, 1, 1), absl::UTCTimeZone()));
}

}  // namespace
}  // namespace fsdpd
