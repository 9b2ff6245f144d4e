#include "fsdp/memory/spike_detector.h"

#include <gtest/gtest.h>

namespace fsdpd {
namespace {

TEST(SpikeDetector, CountsAStepThatStandsOut) {
  SpikeDetector detector;
  for (int i = 0; i < 10; ++i) EXPECT_FALSE(detector.Add(1000));
  EXPECT_TRUE(detector.Add(1101));
  EXPECT_FALSE(detector.Add(1000));
  EXPECT_EQ(detector.spikes(), 1);
}

TEST(SpikeDetector, ATenthMoreIsNoSpike) {
  SpikeDetector detector;
  for (int i = 0; i < 10; ++i) detector.Add(1000);
  EXPECT_FALSE(detector.Add(1100));
  EXPECT_EQ(detector.spikes(), 0);
}

TEST(SpikeDetector, FirstStepsAreNoYardstick) {
  SpikeDetector detector;
  EXPECT_FALSE(detector.Add(100));
  EXPECT_FALSE(detector.Add(1000));
  EXPECT_FALSE(detector.Add(1000));
  EXPECT_FALSE(detector.Add(1000));  // Median of the three before: 1000.
}

TEST(SpikeDetector, OneSpikeDoesNotHideTheNext) {
  SpikeDetector detector;
  for (int i = 0; i < 10; ++i) detector.Add(1000);
  EXPECT_TRUE(detector.Add(5000));
  EXPECT_TRUE(detector.Add(1200));
  EXPECT_EQ(detector.spikes(), 2);
}

TEST(SpikeDetector, LevelThatStaysBecomesNormalAndTheWindowForgetsTheOldOne) {
  SpikeDetector detector;
  for (int i = 0; i < SpikeDetector::kWindow; ++i) detector.Add(1000);
  int steps_until_normal = 0;
  while (detector.Add(2000)) ++steps_until_normal;
  EXPECT_EQ(steps_until_normal, SpikeDetector::kWindow / 2);
  for (int i = 0; i < SpikeDetector::kWindow; ++i) EXPECT_FALSE(detector.Add(2000));
  EXPECT_TRUE(detector.Add(2201));
}

}  // namespace
}  // namespace fsdpd
