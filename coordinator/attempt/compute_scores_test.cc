#include "coordinator/attempt/compute_scores.h"

#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>
#include <gtest/gtest.h>

namespace fsdpd {
namespace {

class ComputeScoresTest : public ::testing::Test {
 protected:
  bool Tell(int rank, double seconds, int64_t steps = 1) {
    v1::ComputeTimes::Rank report;
    report.set_rank(rank);
    report.set_steps(steps);
    report.set_seconds(seconds);
    return scores_.Take(report, world_);
  }
  std::string Slowest() {
    return absl::StrJoin(scores_.Slowest(stages_), ", ", [](std::string* out, const v1::SlowRank& slow) {
      *out += absl::StrFormat("%d: %.2f", slow.rank(), slow.score());
    });
  }

  int world_ = 4;
  int stages_ = 1;
  ComputeScores scores_;
};

TEST_F(ComputeScoresTest, ComparesWithTheMedianOfOtherRanks) {
  for (const auto& [rank, seconds] : {std::pair(0, 1.0), {1, 3.0}, {2, 1.0}, {3, 1.0}}) Tell(rank, seconds);
  EXPECT_EQ(Slowest(), "1: 3.00") << "equally fast ranks are not slow";
}

TEST_F(ComputeScoresTest, SlowOneOfTwoRanksHasItsFactor) {
  world_ = 2;
  Tell(0, 1);
  Tell(1, 2);
  EXPECT_EQ(Slowest(), "1: 2.00");
}

TEST_F(ComputeScoresTest, ListsTheSlowestThreeInOrder) {
  world_ = 100;
  for (int rank = 0; rank < world_; ++rank) Tell(rank, rank < 90 ? 10 : rank);
  EXPECT_EQ(Slowest(), "99: 9.90, 98: 9.80, 97: 9.70");
}

TEST_F(ComputeScoresTest, DoesNotCompareAcrossStages) {
  stages_ = 2;
  for (const auto& [rank, seconds] : {std::pair(0, 1.0), {1, 1.5}, {2, 9.0}, {3, 9.0}}) Tell(rank, seconds);
  EXPECT_EQ(Slowest(), "1: 1.50");
  stages_ = 4;
  EXPECT_EQ(Slowest(), "") << "each stage has one rank";
}

TEST_F(ComputeScoresTest, IsEmptyUntilHalfOfTheRanksAreKnown) {
  world_ = 6;
  Tell(0, 1);
  Tell(1, 5);
  EXPECT_EQ(Slowest(), "");
  Tell(5, 1);
  EXPECT_EQ(Slowest(), "1: 5.00");
}

TEST_F(ComputeScoresTest, NumberOfStepsDoesNotMatter) {
  world_ = 2;
  Tell(0, 10, 10);
  Tell(1, 2, 2);
  EXPECT_EQ(Slowest(), "");
}

TEST_F(ComputeScoresTest, RecoveredRankIsNotSlowAfterHalfAMinute) {
  world_ = 2;
  for (int word = 0; word < 20; ++word) {
    Tell(0, 5, 5);
    Tell(1, 10, 5);
  }
  EXPECT_EQ(Slowest(), "1: 2.00");
  for (int word = 0; word < 6; ++word) {  // 30 s.
    Tell(0, 5, 5);
    Tell(1, 5, 5);
  }
  const auto slowest = scores_.Slowest(1);
  ASSERT_EQ(slowest.size(), 1u);
  EXPECT_LT(slowest[0].score(), 1.3);
}

TEST_F(ComputeScoresTest, RejectsInvalidReports) {
  EXPECT_FALSE(Tell(-1, 1));
  EXPECT_FALSE(Tell(4, 1));
  EXPECT_FALSE(Tell(0, 1, 0));
  EXPECT_FALSE(Tell(0, -1));
  EXPECT_FALSE(Tell(0, std::nan("")));
  EXPECT_FALSE(Tell(0, HUGE_VAL));
  EXPECT_FALSE(scores_.TakeChanged());
  EXPECT_TRUE(Tell(3, 0));
  EXPECT_TRUE(scores_.TakeChanged());
  EXPECT_FALSE(scores_.TakeChanged());
}

}  // namespace
}  // namespace fsdpd
