#include "fsdp/memory/step_peak.h"

#include <gtest/gtest.h>

namespace fsdpd {
namespace {

TEST(StepPeak, IsWhereTheHeightGrewLast) {
  int64_t height = 100;
  StepPeak peak([&] { return height; });
  peak.Begin();
  EXPECT_FALSE(peak.instruction().has_value());
  peak.Ended(0);
  EXPECT_FALSE(peak.instruction().has_value()) << "it took nothing";
  height = 300;
  peak.Ended(1);
  height = 500;
  peak.Ended(2);
  peak.Ended(3);
  EXPECT_EQ(peak.instruction(), 2);
}

TEST(StepPeak, AStepKnowsNothingOfTheOneBefore) {
  int64_t height = 100;
  StepPeak peak([&] { return height; });
  peak.Begin();
  height = 900;
  peak.Ended(7);
  height = 100;
  peak.Begin();
  height = 200;
  peak.Ended(3);
  EXPECT_EQ(peak.instruction(), 3);
}

}  // namespace
}  // namespace fsdpd
