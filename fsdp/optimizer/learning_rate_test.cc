#include "fsdp/optimizer/learning_rate.h"

#include <gtest/gtest.h>

#include <cmath>

namespace fsdpd {
namespace {

constexpr ScheduleShape kAllShapes[] = {ScheduleShape::kConstant, ScheduleShape::kCosine,
                                        ScheduleShape::kLinear, ScheduleShape::kWsd};

ScheduleConfig Wsd(int64_t warmup_steps, int64_t decay_steps, double min_lr_ratio) {
  return {ScheduleShape::kWsd, warmup_steps, decay_steps, min_lr_ratio};
}

TEST(Schedule, ConstantIsThePeak) {
  EXPECT_EQ(LearningRate({ScheduleShape::kConstant}, 0.5, 10, 1), 0.5);
  EXPECT_EQ(LearningRate({ScheduleShape::kConstant}, 0.5, 10, 10), 0.5);
}

TEST(Schedule, WarmupIsLinear) {
  for (ScheduleShape shape : kAllShapes) {
    const ScheduleConfig schedule{shape, 4, /*decay_steps=*/3, 0.1};
    EXPECT_DOUBLE_EQ(LearningRate(schedule, 1.0, 12, 1), 0.25);
    EXPECT_DOUBLE_EQ(LearningRate(schedule, 1.0, 12, 3), 0.75);
    EXPECT_DOUBLE_EQ(LearningRate(schedule, 1.0, 12, 4), 1.0);
  }
}

TEST(Schedule, CosineAndLinearEndAtTheMinimum) {
  for (auto shape : {ScheduleShape::kCosine, ScheduleShape::kLinear}) {
    const ScheduleConfig schedule{shape, 4, 0, 0.1};
    EXPECT_NEAR(LearningRate(schedule, 2.0, 12, 8), 2.0 * 0.55, 1e-12);  // Half way in both shapes.
    EXPECT_NEAR(LearningRate(schedule, 2.0, 12, 12), 0.2, 1e-12);
  }
}

TEST(Schedule, CosineIsFlatAtBothEndsAndLinearIsNot) {
  const double cosine = LearningRate({ScheduleShape::kCosine}, 1.0, 100, 10);
  const double linear = LearningRate({ScheduleShape::kLinear}, 1.0, 100, 10);
  EXPECT_NEAR(linear, 0.9, 1e-12);
  EXPECT_NEAR(cosine, 0.5 * (1 + std::cos(M_PI * 0.1)), 1e-12);
}

TEST(Schedule, WarmupOfTheWholeRunDoesNotDecay) {
  for (ScheduleShape shape : kAllShapes) {
    EXPECT_DOUBLE_EQ(LearningRate({shape, 10, 5, 0}, 1.0, 10, 9), 0.9);
    EXPECT_DOUBLE_EQ(LearningRate({shape, 10, 5, 0}, 1.0, 10, 10), 1.0);
  }
}

TEST(Schedule, WsdDecaysLinearlyAfterThePeak) {
  const ScheduleConfig schedule = Wsd(2, 4, 0.2);
  for (int64_t step = 2; step <= 16; ++step) EXPECT_EQ(LearningRate(schedule, 2.0, 20, step), 2.0) << step;
  EXPECT_NEAR(LearningRate(schedule, 2.0, 20, 17), 1.6, 1e-12);
  EXPECT_NEAR(LearningRate(schedule, 2.0, 20, 18), 1.2, 1e-12);
  EXPECT_NEAR(LearningRate(schedule, 2.0, 20, 19), 0.8, 1e-12);
  EXPECT_NEAR(LearningRate(schedule, 2.0, 20, 20), 0.4, 1e-12);
}

TEST(Schedule, WsdWithOneDecayStep) {
  EXPECT_EQ(LearningRate(Wsd(0, 1, 0.5), 2.0, 8, 7), 2.0);
  EXPECT_EQ(LearningRate(Wsd(0, 1, 0.5), 2.0, 8, 8), 1.0);
}

TEST(Schedule, WsdWithoutDecay) { EXPECT_EQ(LearningRate(Wsd(0, 0, 0), 2.0, 8, 8), 2.0); }

TEST(Schedule, WsdWithFullDecayIsLinear) {
  const ScheduleConfig linear{ScheduleShape::kLinear, 3, 0, 0.1};
  for (int64_t step = 1; step <= 9; ++step) {
    EXPECT_EQ(LearningRate(Wsd(3, 6, 0.1), 1.0, 9, step), LearningRate(linear, 1.0, 9, step)) << step;
    EXPECT_EQ(LearningRate(Wsd(3, 100, 0.1), 1.0, 9, step), LearningRate(linear, 1.0, 9, step)) << step;
  }
}

}  // namespace
}  // namespace fsdpd
