#include "base/repeats.h"

#include <absl/strings/str_cat.h>
#include <gtest/gtest.h>

namespace fsdpd {
namespace {

const absl::Time kStart = absl::FromUnixSeconds(1'000'000);

TEST(Repeats, ReportsFirstAndThenOncePerMinute) {
  Repeats repeats;
  EXPECT_EQ(repeats.Report("a", kStart), 0);
  EXPECT_EQ(repeats.Report("a", kStart), std::nullopt);
  EXPECT_EQ(repeats.Report("b", kStart), 0) << "another cause";
  EXPECT_EQ(repeats.Report("a", kStart + kReportInterval - absl::Nanoseconds(1)), std::nullopt);
  EXPECT_EQ(repeats.Report("a", kStart + kReportInterval), 2);
  EXPECT_EQ(repeats.Report("a", kStart + kReportInterval), std::nullopt);
  EXPECT_EQ(repeats.Report("a", kStart + 2 * kReportInterval), 1);
}

TEST(Repeats, LimitsTheNumberOfCauses) {
  Repeats repeats;
  int told = 0;
  for (int i = 0; i < 1000; ++i) told += repeats.Report(absl::StrCat(i), kStart).has_value() ? 1 : 0;
  EXPECT_EQ(told, static_cast<int>(kMaxRepeatedCauses) + 1);
}

TEST(Repeats, ClockSetBackDoesNotSuppress) {
  Repeats repeats;
  repeats.Report("a", kStart);
  EXPECT_EQ(repeats.Report("a", kStart - absl::Hours(1)), 0);
}

}  // namespace
}  // namespace fsdpd
