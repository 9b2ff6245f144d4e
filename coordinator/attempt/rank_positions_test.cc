#include "coordinator/attempt/rank_positions.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <gtest/gtest.h>

namespace fsdpd {
namespace {

std::string Text(const v1::Job& job) {
  return absl::StrJoin(job.positions(), "; ", [](std::string* out, const v1::Job::Position& stand) {
    absl::StrAppend(out, stand.position(), " ", absl::StrJoin(stand.ranks(), ","));
  });
}

TEST(RankPositions, GroupsRanksByPosition) {
  v1::Job job;
  for (const int rank : {5, 0, 3, 1}) EXPECT_TRUE(TakePosition(rank, "reduce in Norm", &job));
  EXPECT_TRUE(TakePosition(2, "compute in Forward head", &job));
  EXPECT_EQ(Text(job), "reduce in Norm 0,1,3,5; compute in Forward head 2");
}

TEST(RankPositions, NewerPositionReplacesOlder) {
  v1::Job job;
  for (const int rank : {0, 1}) EXPECT_TRUE(TakePosition(rank, "a", &job));
  EXPECT_TRUE(TakePosition(1, "b", &job));
  EXPECT_TRUE(TakePosition(1, "b", &job));
  EXPECT_EQ(Text(job), "a 0; b 1");
  EXPECT_TRUE(TakePosition(0, "b", &job));
  EXPECT_EQ(Text(job), "b 0,1");
}

TEST(RankPositions, BoundsPositionsAndTextSize) {
  v1::Job job;
  for (int rank = 0; rank < kMaxPositions; ++rank)
    EXPECT_TRUE(TakePosition(rank, absl::StrCat("p", rank), &job));
  EXPECT_FALSE(TakePosition(kMaxPositions, "elsewhere", &job));
  EXPECT_TRUE(TakePosition(kMaxPositions, "p0", &job));
  EXPECT_EQ(job.positions_size(), kMaxPositions);
  EXPECT_FALSE(TakePosition(0, std::string(kMaxStandBytes + 1, 'x'), &job));
  EXPECT_FALSE(TakePosition(0, "", &job));
  EXPECT_EQ(job.positions(0).ranks_size(), 2);
  EXPECT_TRUE(TakePosition(kMaxPositions, "elsewhere", &job));  // It left its previous position: a change.
  EXPECT_EQ(job.positions(0).ranks_size(), 1);
}

}  // namespace
}  // namespace fsdpd
