#include "fsdp/comm/ordered_sum.h"

#include <gtest/gtest.h>

namespace fsdpd {
namespace {

TEST(OrderedSum, AddsInTheOrderOfTheParts) {
  // In fp32, 1 is lost beside 1e8: only the order given leaves 1.
  const float big = 1e8f, minus = -1e8f, one = 1;
  float out = 0;
  SumInOrder({&big, &minus, &one}, 1, &out);
  EXPECT_EQ(out, 1);
  SumInOrder({&one, &big, &minus}, 1, &out);
  EXPECT_EQ(out, 0);
}

TEST(OrderedSum, WritesOverAnyOfItsParts) {
  for (const size_t target : {0u, 1u, 2u}) {
    std::vector<std::vector<float>> parts(3, std::vector<float>(5000));
    for (int i = 0; i < 5000; ++i) {
      for (int p = 0; p < 3; ++p) parts[p][i] = i + p;
    }
    SumInOrder({parts[0].data(), parts[1].data(), parts[2].data()}, 5000, parts[target].data());
    for (int i = 0; i < 5000; ++i) ASSERT_EQ(parts[target][i], 3 * i + 3);
  }
}

TEST(OrderedSum, PiecesCoverEveryElementOnce) {
  for (const int size : {1, 2, 3, 4, 8}) {
    for (const int64_t count : {0, 1, 2, 7, 8, 9, 1001}) {
      int64_t next = 0;
      for (int rank = 0; rank < size; ++rank) {
        const Piece piece = PieceOf(rank, size, count);
        EXPECT_EQ(piece.begin, next);
        EXPECT_GE(piece.count, 0);
        next += piece.count;
      }
      EXPECT_EQ(next, count);
    }
  }
}

}  // namespace
}  // namespace fsdpd
