#include "coordinator/job/step_pace.h"

#include <gtest/gtest.h>

namespace fsdpd {
namespace {

class StepPaceTest : public ::testing::Test {
 protected:
  StepPaceTest() { pace_.WaitFrom(now_); }
  void Step(absl::Duration took, absl::Duration arrives_late = absl::ZeroDuration()) {
    const v1::StepReport before = last_;
    last_.set_step(before.step() + 1);
    last_.set_unix_nanos(before.unix_nanos() + absl::ToInt64Nanoseconds(took));
    now_ += took + arrives_late;
    pace_.Take(before, last_, now_);
  }
  bool StalledAfter(absl::Duration time) const { return StepPace(pace_).Stalled(now_ + time); }

  absl::Time now_ = absl::FromUnixSeconds(5000);
  v1::StepReport last_;
  StepPace pace_;
};

TEST_F(StepPaceTest, NoStallBeforeLaunch) { EXPECT_FALSE(StepPace().Stalled(now_ + absl::Hours(1))); }

TEST_F(StepPaceTest, FastStepsStallAfterTenSeconds) {
  for (int i = 0; i < 3; ++i) Step(absl::Milliseconds(200));
  EXPECT_FALSE(StalledAfter(absl::Seconds(10)));
  EXPECT_TRUE(StalledAfter(absl::Seconds(11)));
}

TEST_F(StepPaceTest, SlowStepsStallAfterFiveTimesTheirTime) {
  for (int i = 0; i < 3; ++i) Step(absl::Seconds(30));
  EXPECT_FALSE(StalledAfter(absl::Seconds(150)));
  EXPECT_TRUE(StalledAfter(absl::Seconds(151)));
}

TEST_F(StepPaceTest, FirstStepHasFiveMinutes) {
  EXPECT_FALSE(StalledAfter(absl::Minutes(5)));
  EXPECT_TRUE(StalledAfter(absl::Minutes(6)));
}

TEST_F(StepPaceTest, EvaluationDecaysSlowly) {
  Step(absl::Seconds(1));
  Step(absl::Seconds(100));
  Step(absl::Seconds(1));
  EXPECT_FALSE(StalledAfter(absl::Seconds(400)));
  for (int i = 0; i < 60; ++i) Step(absl::Seconds(1));
  EXPECT_TRUE(StalledAfter(absl::Seconds(11)));
}

TEST_F(StepPaceTest, OutageBetweenReportsIsNotASlowStep) {
  for (int i = 0; i < 3; ++i) Step(absl::Seconds(1));
  Step(absl::Seconds(1), /*arrives_late=*/absl::Seconds(60));
  EXPECT_TRUE(StalledAfter(absl::Seconds(11)));
}

TEST_F(StepPaceTest, DateChangeIsNotASlowStep) {
  for (int i = 0; i < 3; ++i) Step(absl::Seconds(1));
  Step(absl::Hours(1), /*arrives_late=*/absl::Seconds(1) - absl::Hours(1));
  EXPECT_TRUE(StalledAfter(absl::Seconds(11)));
}

TEST_F(StepPaceTest, OnlyAStepEndsAStall) {
  for (int i = 0; i < 3; ++i) Step(absl::Seconds(1));
  EXPECT_TRUE(pace_.Stalled(now_ + absl::Seconds(11)));
  pace_.WaitFrom(now_ + absl::Seconds(12));  // Its agent was briefly disconnected.
  EXPECT_TRUE(pace_.Stalled(now_ + absl::Seconds(12)));
  EXPECT_EQ(pace_.since(), now_);
  Step(absl::Seconds(13));
  EXPECT_FALSE(pace_.Stalled(now_));
}

}  // namespace
}  // namespace fsdpd
