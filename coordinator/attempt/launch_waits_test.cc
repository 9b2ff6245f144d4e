#include "coordinator/attempt/launch_waits.h"

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fsdpd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class LaunchWaitsTest : public ::testing::Test {
 protected:
  absl::Time After(absl::Duration time) const { return sent_ + time; }

  const absl::Time sent_ = absl::FromUnixSeconds(5000);
  LaunchWaits waits_;
};

TEST_F(LaunchWaitsTest, ResendsEveryFiveSecondsUntilAnswered) {
  waits_.Sent("a", true, sent_);
  waits_.Sent("b", true, sent_);
  EXPECT_THAT(waits_.TakeDue(After(absl::Seconds(4))), IsEmpty());
  EXPECT_THAT(waits_.TakeDue(After(absl::Seconds(5))), ElementsAre("a", "b"));
  EXPECT_THAT(waits_.TakeDue(After(absl::Seconds(9))), IsEmpty());
  waits_.Answered("a");
  EXPECT_THAT(waits_.TakeDue(After(absl::Seconds(10))), ElementsAre("b"));
}

TEST_F(LaunchWaitsTest, ResendingDoesNotExtendDeadline) {
  waits_.Sent("a", true, sent_);
  for (int s = 1; s < 60; ++s) {
    waits_.TakeDue(After(absl::Seconds(s)));
    EXPECT_FALSE(waits_.Expired("a", After(absl::Seconds(s))));
  }
  EXPECT_TRUE(waits_.Expired("a", After(absl::Seconds(60))));
  EXPECT_FALSE(waits_.Expired("b", After(absl::Seconds(60)))) << "no launch was sent to it";
  waits_.Answered("a");
  EXPECT_FALSE(waits_.Expired("a", After(absl::Seconds(60))));
}

TEST_F(LaunchWaitsTest, LateReasonDoesNotChangeWithTime) {
  waits_.Sent("a", true, sent_);
  EXPECT_EQ(waits_.Late(After(absl::Seconds(4))).reason, "");
  const LateLaunches late = waits_.Late(After(absl::Seconds(5)));
  EXPECT_EQ(late.reason,
            "launch is not acknowledged by a; resending it every 5s, the attempt fails after 1m");
  EXPECT_EQ(late.node, "a");
  EXPECT_EQ(waits_.Late(After(absl::Seconds(50))).reason, late.reason);
  waits_.Sent("b", true, sent_);
  EXPECT_THAT(waits_.Late(After(absl::Seconds(5))).reason, HasSubstr("by a, b; "));
  EXPECT_EQ(waits_.Late(After(absl::Seconds(5))).node, "");
}

TEST_F(LaunchWaitsTest, BoundsReasonOfLargeJob) {
  for (int node = 10; node < 30; ++node) waits_.Sent(absl::StrCat("n", node), true, sent_);
  EXPECT_THAT(waits_.Late(After(absl::Seconds(5))).reason, HasSubstr("n16, n17 and 12 more; "));
}

TEST_F(LaunchWaitsTest, ReportsOlderAgentAfterFourMinutesWithoutFailure) {
  waits_.Sent("old", false, sent_);
  EXPECT_THAT(waits_.TakeDue(After(absl::Hours(1))), IsEmpty());
  EXPECT_FALSE(waits_.Expired("old", After(absl::Hours(1))));
  EXPECT_EQ(waits_.Late(After(absl::Minutes(3))).reason, "");
  EXPECT_EQ(waits_.Late(After(absl::Minutes(4))).reason,
            "launch is not acknowledged by old, of an older release that cannot acknowledge it; its ranks "
            "have not reported anything for 4m");
  EXPECT_EQ(waits_.Late(After(absl::Minutes(4))).node, "old");
}

TEST_F(LaunchWaitsTest, RestartsWaitAfterCoordinatorDidNotRun) {
  waits_.Sent("a", true, sent_);
  waits_.RestartWaits(After(absl::Minutes(5)));
  EXPECT_FALSE(waits_.Expired("a", After(absl::Minutes(5))));
  EXPECT_THAT(waits_.TakeDue(After(absl::Minutes(5))), IsEmpty());
  EXPECT_TRUE(waits_.Expired("a", After(absl::Minutes(6))));
}

}  // namespace
}  // namespace fsdpd
