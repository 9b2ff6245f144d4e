#include "client/text/log_choice.h"

#include <gtest/gtest.h>

namespace fsdpd {
namespace {

v1::TailLogsResponse Line(int rank, const std::string& text) {
  v1::TailLogsResponse log;
  log.set_attempt(1);
  log.set_rank(rank);
  log.set_line(text);
  return log;
}

class LogFilterTest : public ::testing::Test {
 protected:
  LogFilter::Sink Sink() {
    return [this](const v1::TailLogsResponse& log) {
      taken_ += std::to_string(log.rank()) + log.line().substr(0, 26) + "\n";
    };
  }
  static absl::Time At(const char* text) {
    absl::Time time;
    std::string error;
    EXPECT_TRUE(absl::ParseTime(absl::RFC3339_full, text, &time, &error)) << error;
    return time;
  }
  std::string taken_;
};

TEST_F(LogFilterTest, MergesRanksByTime) {
  LogFilter choice(absl::InfinitePast(), nullptr, Sink());
  choice.EnableSorting(1 << 20);
  choice.Take(Line(0, "2026-11-23T10:00:01.000Z a"));
  choice.Take(Line(0, "2026-11-23T10:00:03.000Z c"));
  choice.Take(Line(0, "Traceback"));
  choice.Take(Line(1, "2026-11-23T10:00:02.000Z b"));
  choice.Take(Line(1, "2026-11-23T10:00:04.000Z d"));
  EXPECT_EQ(taken_, "");
  choice.End();
  EXPECT_EQ(taken_,
            "02026-11-23T10:00:01.000Z a\n12026-11-23T10:00:02.000Z b\n02026-11-23T10:00:03.000Z c\n"
            "0Traceback\n12026-11-23T10:00:04.000Z d\n");
  EXPECT_FALSE(choice.overflowed());
}

TEST_F(LogFilterTest, OrdersEqualTimesByRank) {
  LogFilter choice(absl::InfinitePast(), nullptr, Sink());
  choice.EnableSorting(1 << 20);
  for (const char* line : {"thread 1", "thread 2"}) {
    for (const int rank : {1, 0}) choice.Take(Line(rank, line));
  }
  choice.End();
  EXPECT_EQ(taken_, "0thread 1\n0thread 2\n1thread 1\n1thread 2\n");
}

TEST_F(LogFilterTest, PassesOnLinesAfterOverflow) {
  LogFilter choice(absl::InfinitePast(), nullptr, Sink());
  choice.EnableSorting(1);
  choice.Take(Line(0, "2026-11-23T10:00:03.000Z a"));
  choice.Take(Line(1, "2026-11-23T10:00:01.000Z b"));
  EXPECT_EQ(taken_, "02026-11-23T10:00:03.000Z a\n12026-11-23T10:00:01.000Z b\n");
  EXPECT_TRUE(choice.overflowed());
}

TEST_F(LogFilterTest, FiltersBySince) {
  LogFilter choice(At("2026-11-23T10:00:02.000Z"), nullptr, Sink());
  choice.Take(Line(0, "before any time"));
  choice.Take(Line(0, "2026-11-23T10:00:01.999Z a"));
  choice.Take(Line(0, "its second line"));
  choice.Take(Line(0, "2026-11-23T10:00:02.000Z b"));
  choice.Take(Line(0, "its second line"));
  EXPECT_EQ(taken_, "02026-11-23T10:00:02.000Z b\n0its second line\n");
}

TEST_F(LogFilterTest, MatchesPatternAnywhere) {
  const absl::StatusOr<LogPattern> pattern = LogPattern::Parse("step [0-9]+|NCCL");
  ASSERT_TRUE(pattern.ok());
  LogFilter choice(absl::InfinitePast(), &*pattern, Sink());
  for (const char* line : {"a step 12", "a step", "NCCL WARN"}) choice.Take(Line(0, line));
  EXPECT_EQ(taken_, "0a step 12\n0NCCL WARN\n");
  EXPECT_FALSE(LogPattern::Parse("a(b").ok());
}

TEST(Since, ParsesUnits) {
  const absl::Time now = absl::FromUnixSeconds(1'800'000'000);
  EXPECT_EQ(*ParseSince("90", now), now - absl::Seconds(90));
  EXPECT_EQ(*ParseSince("1.5m", now), now - absl::Seconds(90));
  EXPECT_EQ(*ParseSince("2h", now), now - absl::Hours(2));
  EXPECT_EQ(*ParseSince("1d", now), now - absl::Hours(24));
  EXPECT_EQ(*ParseSince("2027-01-15T08:00:00Z", now), now);
  EXPECT_EQ(*ParseSince("1h30m", now), now - absl::Minutes(90));
  EXPECT_EQ(*ParseSince("1d2h3m4s", now), now - absl::Seconds(86400 + 7200 + 180 + 4));
  for (const char* printed : {"2027-01-15 08:00:00", "2027-01-15 08:00:00 UTC", "2027-01-15 08:00",
                              "2027-01-15T08:00:00", "2027-01-15T09:00:00+01:00"})
    EXPECT_EQ(*ParseSince(printed, now), now) << printed;
  EXPECT_EQ(*ParseSince("2027-01-15", now), now - absl::Hours(8));
  for (const char* bad : {"", "m", "-5m", "5w", "0", "nan", "inf", "30m1h", "1h30", "1h1h", "2027-13-01"})
    EXPECT_FALSE(ParseSince(bad, now).ok()) << bad;
}

}  // namespace
}  // namespace fsdpd
