#include "fsdp/plan/mesh/sequence_partition.h"

#include <gtest/gtest.h>

#include <set>

namespace fsdpd {
namespace {

TEST(SequencePartition, AssignsEachTokenToOneRank) {
  for (int64_t ranks = 1; ranks <= 5; ++ranks) {
    std::set<int64_t> positions;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      const SequencePartition cut{60 * ranks, ranks, rank};
      EXPECT_EQ(cut.tokens(), 60);
      for (int64_t t = 0; t < cut.tokens(); ++t) EXPECT_TRUE(positions.insert(cut.PositionOf(t)).second);
    }
    EXPECT_EQ(*positions.begin(), 0);
    EXPECT_EQ(*positions.rbegin(), 60 * ranks - 1);
  }
}

TEST(SequencePartition, BalancesCausalWork) {
  for (int64_t rank = 0; rank < 4; ++rank) {
    const SequencePartition cut{80, 4, rank};
    int64_t keys = 0;
    for (int64_t t = 0; t < cut.tokens(); ++t) keys += cut.PositionOf(t) + 1;
    EXPECT_EQ(keys, 80 * 81 / 2 / 4);
  }
}

TEST(SequencePartition, MapsChunkToRankAndHalf) {
  for (int64_t rank = 0; rank < 3; ++rank) {
    const SequencePartition cut{18, 3, rank};
    for (int half = 0; half < SequencePartition::kChunksPerRank; ++half) {
      const int64_t chunk = cut.own_chunks()[half];
      EXPECT_EQ(cut.RankOf(chunk), rank);
      EXPECT_EQ(cut.HalfOf(chunk), half);
      EXPECT_EQ(cut.PositionOf(half * cut.chunk_tokens()), chunk * cut.chunk_tokens());
    }
  }
}

TEST(SequencePartition, SingleRankSupportsAnyLength) {
  const SequencePartition cut{7, 1, 0};
  for (int64_t t = 0; t < 7; ++t) EXPECT_EQ(cut.PositionOf(t), t);
}

}  // namespace
}  // namespace fsdpd
