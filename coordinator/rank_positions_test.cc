#include "coordinator/rank_positions.h"

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
  for (const int rank : {5, 0, 3, 1}) EXPECT_TRUE(TakeStand(rank, "reduce in Norm", &job));
  EXPECT_TRUE(TakeStand(2, "compute in Forward head", &job));
  EXPECT_EQ(Text(job), "reduce in Norm 0,1,3,5; compute in Forward head 2");
}

TEST(RankPositions, NewerPositionReplacesOlder) {
  v1::Job job;
  for (const int rank : {0, 1}) EXPECT_TRUE(TakeStand(rank, "a", &job));
  EXPECT_TRUE(TakeStand(1, "b", &job));
  EXPECT_TRUE(TakeStand(1, "b", &job));
  EXPECT_EQ(Text(job), "a 0; b 1");
  EXPECT_TRUE(TakeStand(0, "b", &job));
  EXPECT_EQ(Text(job), "b 0,1");
}

TEST(RankPositions, BoundsPositionsAndTextSize) {
  v1::Job job;
  for (int rank = 0; rank < kMaxStands; ++rank) EXPECT_TRUE(TakeStand(rank, absl::StrCat("p", rank), &job));
  EXPECT_FALSE(TakeStand(kMaxStands, "elsewhere", &job));
  EXPECT_TRUE(TakeStand(kMaxStands, "p0", &job));
  EXPECT_EQ(job.positions_size(), kMaxStands);
  EXPECT_FALSE(TakeStand(0, std::string(kMaxStandBytes + 1, 'x'), &job));
  EXPECT_FALSE(TakeStand(0, "", &job));
  EXPECT_EQ(job.positions(0).ranks_size(), 2);
  EXPECT_TRUE(TakeStand(kMaxStands, "elsewhere", &job));  // It left its previous position: a change.
  EXPECT_EQ(job.positions(0).ranks_size(), 1);
}

}  // namespace
}  // namespace fsdpd
