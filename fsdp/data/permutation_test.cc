#include "fsdp/data/permutation.h"

#include <gtest/gtest.h>

#include <vector>

namespace fsdpd {
namespace {

TEST(Permutation, IsABijection) {
  for (int64_t size : {1, 2, 3, 4, 5, 17, 64, 1000, 4097}) {
    std::vector<int> hits(size, 0);
    for (int64_t i = 0; i < size; ++i) {
      const int64_t place = Permute(7, i, size);
      ASSERT_GE(place, 0);
      ASSERT_LT(place, size);
      ++hits[place];
    }
    EXPECT_EQ(hits, std::vector<int>(size, 1)) << size;
  }
}

TEST(Permutation, DependsOnSeedAndIsNotIdentity) {
  int same_as_other_seed = 0;
  int fixed_points = 0;
  for (int64_t i = 0; i < 1000; ++i) {
    same_as_other_seed += Permute(1, i, 1000) == Permute(2, i, 1000);
    fixed_points += Permute(1, i, 1000) == i;
  }
  EXPECT_LT(same_as_other_seed, 10);  // One is expected for two unrelated permutations.
  EXPECT_LT(fixed_points, 10);
}

TEST(Permutation, SupportsRangesBeyond32Bits) {
  const int64_t size = int64_t{5} << 40;
  const int64_t place = Permute(3, size - 1, size);
  EXPECT_GE(place, 0);
  EXPECT_LT(place, size);
  EXPECT_NE(place, Permute(3, size - 2, size));
}

}  // namespace
}  // namespace fsdpd
