#include "fsdp/engine/schedule.h"

#include <gtest/gtest.h>

#include <cmath>

namespace fsdpd {
namespace {

TEST(Schedule, ConstantStaysAtThePeak) {
  EXPECT_EQ(LearningRate({ScheduleShape::kConstant, 0, 0}, 0.5, 10, 1), 0.5);
  EXPECT_EQ(LearningRate({ScheduleShape::kConstant, 0, 0}, 0.5, 10, 10), 0.5);
}

TEST(Schedule, WarmupRisesLinearlyAndReachesThePeakAtItsLastStep) {
  for (auto shape : {ScheduleShape::kConstant, ScheduleShape::kCosine, ScheduleShape::kLinear}) {
    const ScheduleConfig schedule{shape, 4, 0.1};
    EXPECT_DOUBLE_EQ(LearningRate(schedule, 1.0, 12, 1), 0.25);
    EXPECT_DOUBLE_EQ(LearningRate(schedule, 1.0, 12, 3), 0.75);
    EXPECT_DOUBLE_EQ(LearningRate(schedule, 1.0, 12, 4), 1.0);
  }
}

TEST(Schedule, CosineAndLinearMeetTheMinimumAtTheLastStep) {
  for (auto shape : {ScheduleShape::kCosine, ScheduleShape::kLinear}) {
    const ScheduleConfig schedule{shape, 4, 0.1};
    EXPECT_NEAR(LearningRate(schedule, 2.0, 12, 8), 2.0 * 0.55, 1e-12);  // Half way in both shapes.
    EXPECT_NEAR(LearningRate(schedule, 2.0, 12, 12), 0.2, 1e-12);
  }
}

TEST(Schedule, CosineIsFlatAtBothEndsAndLinearIsNot) {
  const double cosine = LearningRate({ScheduleShape::kCosine, 0, 0}, 1.0, 100, 10);
  const double linear = LearningRate({ScheduleShape::kLinear, 0, 0}, 1.0, 100, 10);
  EXPECT_NEAR(linear, 0.9, 1e-12);
  EXPECT_NEAR(cosine, 0.5 * (1 + std::cos(M_PI * 0.1)), 1e-12);
}

TEST(Schedule, WarmupAsLongAsTheRunNeverFalls) {
  EXPECT_DOUBLE_EQ(LearningRate({ScheduleShape::kCosine, 10, 0}, 1.0, 10, 10), 1.0);
}

}  // namespace
}  // namespace fsdpd
