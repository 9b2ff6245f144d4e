#include "fsdp/plan/mesh/sequence_partition.h"

#include <gtest/gtest.h>

#include <set>

namespace fsdpd {
namespace {

TEST(SequencePartition, AssignsEachTokenToOneRank) {
  for (int64_t ranks = 1; ranks <= 5; ++ranks) {
    std::set<int64_t> positions;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      const SequencePartition partition{60 * ranks, ranks, rank};
      EXPECT_EQ(partition.tokens(), 60);
      for (int64_t t = 0; t < partition.tokens(); ++t)
        EXPECT_TRUE(positions.insert(partition.PositionOf(t)).second);
    }
    EXPECT_EQ(*positions.begin(), 0);
    EXPECT_EQ(*positions.rbegin(), 60 * ranks - 1);
  }
}

TEST(SequencePartition, BalancesCausalWork) {
  for (int64_t rank = 0; rank < 4; ++rank) {
    const SequencePartition partition{80, 4, rank};
    int64_t keys = 0;
    for (int64_t t = 0; t < partition.tokens(); ++t) keys += partition.PositionOf(t) + 1;
    EXPECT_EQ(keys, 80 * 81 / 2 / 4);
  }
}

TEST(SequencePartition, MapsChunkToRankAndHalf) {
  for (int64_t rank = 0; rank < 3; ++rank) {
    const SequencePartition partition{18, 3, rank};
    for (int half = 0; half < SequencePartition::kChunksPerRank; ++half) {
      const int64_t chunk = partition.own_chunks()[half];
      EXPECT_EQ(partition.RankOf(chunk), rank);
      EXPECT_EQ(partition.HalfOf(chunk), half);
      EXPECT_EQ(partition.PositionOf(half * partition.chunk_tokens()), chunk * partition.chunk_tokens());
    }
  }
}

TEST(SequencePartition, SingleRankSupportsAnyLength) {
  const SequencePartition partition{7, 1, 0};
  for (int64_t t = 0; t < 7; ++t) EXPECT_EQ(partition.PositionOf(t), t);
}

}  // namespace
}  // namespace fsdpd
