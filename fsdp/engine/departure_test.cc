#include "fsdp/engine/departure.h"

#include <gtest/gtest.h>

namespace fsdpd {
namespace {

TEST(Departure, IsNotRequestedAtFirst) {
  const Departure departure;
  EXPECT_FALSE(departure.requested());
  EXPECT_EQ(departure.remaining(), absl::InfiniteDuration());
}

TEST(Departure, EarliestDeadlineWins) {
  FakeClock clock;
  Departure departure(&clock);
  departure.LeaveWithin(absl::Seconds(10));
  EXPECT_TRUE(departure.requested());
  clock.Advance(absl::Seconds(4));
  EXPECT_EQ(departure.remaining(), absl::Seconds(6));
  departure.LeaveWithin(absl::Seconds(7));
  EXPECT_EQ(departure.remaining(), absl::Seconds(6));
  departure.LeaveWithin(absl::Seconds(1));
  EXPECT_EQ(departure.remaining(), absl::Seconds(1));
  clock.Advance(absl::Seconds(2));
  EXPECT_EQ(departure.remaining(), absl::Seconds(-1));
  EXPECT_TRUE(departure.requested());
}

TEST(Departure, IgnoresWallClockChanges) {
  FakeClock clock;
  Departure departure(&clock);
  departure.LeaveWithin(absl::Seconds(10));
  clock.StepWall(absl::Hours(1));
  EXPECT_EQ(departure.remaining(), absl::Seconds(10));
}

TEST(Departure, EstimatesTimeToSave) {
  SaveEstimate estimate;
  estimate.bytes = 3'000'000'000;
  estimate.steps = 2;
  EXPECT_EQ(TimeToSave(estimate), absl::Seconds(3)) << "nothing is known but the bytes";
  estimate.step_seconds = 1.5;
  EXPECT_EQ(TimeToSave(estimate), absl::Seconds(6));
  estimate.last_seconds = 8;
  EXPECT_EQ(TimeToSave(estimate), absl::Seconds(11)) << "what was measured counts";
}

}  // namespace
}  // namespace fsdpd
