#include "fsdp/memory/spike_detector.h"

#include <gtest/gtest.h>

namespace fsdpd {
namespace {

TEST(SpikeDetector, CountsSpikes) {
  SpikeDetector detector;
  for (int i = 0; i < 10; ++i) EXPECT_FALSE(detector.Add(1000).has_value());
  EXPECT_TRUE(detector.Add(1101).has_value());
  EXPECT_FALSE(detector.Add(1000).has_value());
  EXPECT_EQ(detector.spikes(), 1);
}

TEST(SpikeDetector, IgnoresATenthMore) {
  SpikeDetector detector;
  for (int i = 0; i < 10; ++i) detector.Add(1000);
  EXPECT_FALSE(detector.Add(1100).has_value());
  EXPECT_EQ(detector.spikes(), 0);
}

TEST(SpikeDetector, IgnoresFirstSteps) {
  SpikeDetector detector;
  EXPECT_FALSE(detector.Add(100).has_value());
  EXPECT_FALSE(detector.Add(1000).has_value());
  EXPECT_FALSE(detector.Add(1000).has_value());
  EXPECT_FALSE(detector.Add(1000).has_value());  // Median of the three before: 1000.
}

TEST(SpikeDetector, OneSpikeDoesNotHideTheNext) {
  SpikeDetector detector;
  for (int i = 0; i < 10; ++i) detector.Add(1000);
  EXPECT_TRUE(detector.Add(5000).has_value());
  EXPECT_TRUE(detector.Add(1200).has_value());
  EXPECT_EQ(detector.spikes(), 2);
}

TEST(SpikeDetector, ReturnsReferences) {
  SpikeDetector detector(/*plan_bytes=*/4000);
  for (int i = 0; i < 10; ++i) detector.Add(1000);
  const auto spike = detector.Add(5000);
  ASSERT_TRUE(spike.has_value());
  EXPECT_EQ(spike->median_bytes, 1000);
  EXPECT_EQ(spike->plan_bytes, 4000);
}

TEST(SpikeDetector, ReportsEachNewPeakAboveThePlan) {
  SpikeDetector detector(/*plan_bytes=*/1000);
  const auto first = detector.Add(1200);
  ASSERT_TRUE(first.has_value());
  EXPECT_EQ(first->median_bytes, 0) << "no step came before";
  EXPECT_FALSE(detector.Add(1200).has_value()) << "it is known";
  EXPECT_TRUE(detector.Add(1250).has_value());
  EXPECT_FALSE(detector.Add(1220).has_value());
  SpikeDetector near(/*plan_bytes=*/1000);
  EXPECT_FALSE(near.Add(1100).has_value()) << "plans have estimates";
}

TEST(SpikeDetector, NewLevelBecomesNormal) {
  SpikeDetector detector;
  for (int i = 0; i < SpikeDetector::kWindow; ++i) detector.Add(1000);
  int steps_until_normal = 0;
  while (detector.Add(2000).has_value()) ++steps_until_normal;
  EXPECT_EQ(steps_until_normal, SpikeDetector::kWindow / 2);
  for (int i = 0; i < SpikeDetector::kWindow; ++i) EXPECT_FALSE(detector.Add(2000).has_value());
  EXPECT_TRUE(detector.Add(2201).has_value());
}

}  // namespace
}  // namespace fsdpd
