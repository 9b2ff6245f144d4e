#include "fsdp/plan/model/tensor_partition.h"

#include <gtest/gtest.h>

#include <numeric>

namespace fsdpd {
namespace {

using Numbers = std::vector<int64_t>;

// A shard's elements by its runs, if each element's value is its index in the whole parameter.
Numbers SliceByRuns(const Numbers& shape, const TensorPartition& partition, int64_t part, int64_t begin,
                    int64_t elements) {
  Numbers found;
  for (const ElementRun& run : FullRuns(shape, partition, part, begin, elements)) {
    for (int64_t i = 0; i < run.elements; ++i) found.push_back(run.begin + i);
  }
  return found;
}

TEST(TensorPartition, RowShardIsOneRun) {
  const TensorPartition rows{0, 2};  // [4 x 3].
  EXPECT_EQ(FullShape({2, 3}, rows), (Numbers{4, 3}));
  EXPECT_EQ(FullRuns({2, 3}, rows, 1, 0, 6).size(), 1u);
  EXPECT_EQ(SliceByRuns({2, 3}, rows, 1, 0, 6), (Numbers{6, 7, 8, 9, 10, 11}));
  EXPECT_EQ(SliceByRuns({2, 3}, rows, 0, 2, 3), (Numbers{2, 3, 4}));
  EXPECT_EQ(FullOffsets({1, 2}, {2, 3}, rows, 1), (Numbers{3, 2}));
}

TEST(TensorPartition, ColumnShardIsOneRunPerRow) {
  const TensorPartition columns{1, 3};  // [2 x 6].
  EXPECT_EQ(FullShape({2, 2}, columns), (Numbers{2, 6}));
  EXPECT_EQ(SliceByRuns({2, 2}, columns, 0, 0, 4), (Numbers{0, 1, 6, 7}));
  EXPECT_EQ(SliceByRuns({2, 2}, columns, 2, 0, 4), (Numbers{4, 5, 10, 11}));
  EXPECT_EQ(SliceByRuns({2, 2}, columns, 1, 1, 2), (Numbers{3, 8}));
  EXPECT_EQ(FullOffsets({1, 1}, {2, 2}, columns, 2), (Numbers{1, 5}));
}

TEST(TensorPartition, ShardsCoverEachElementOnce) {
  for (const Numbers& shape : {Numbers{4}, Numbers{2, 3}, Numbers{3, 2, 2}}) {
    for (int dim = 0; dim < static_cast<int>(shape.size()); ++dim) {
      const TensorPartition partition{dim, 3};
      int64_t elements = 1;
      for (const int64_t size : shape) elements *= size;
      Numbers seen(3 * elements, 0);
      for (int64_t part = 0; part < 3; ++part) {
        for (const int64_t at : SliceByRuns(shape, partition, part, 0, elements)) ++seen[at];
      }
      EXPECT_EQ(seen, Numbers(3 * elements, 1)) << dim;
    }
  }
}

TEST(TensorPartition, UnpartitionedShardIsIdentity) {
  EXPECT_EQ(FullShape({2, 3}, {}), (Numbers{2, 3}));
  EXPECT_EQ(SliceByRuns({2, 3}, {}, 0, 1, 4), (Numbers{1, 2, 3, 4}));
  EXPECT_EQ(FullOffsets({1, 2}, {2, 3}, {}, 0), (Numbers{1, 2}));
}

}  // namespace
}  // namespace fsdpd
