#include "fsdp/plan/layout.h"

#include <gtest/gtest.h>

namespace fsdpd {
namespace {

ModelFacts OneUnit(const std::vector<int64_t>& sizes) {
  UnitFacts unit;
  unit.name = "unit";
  for (size_t i = 0; i < sizes.size(); ++i)
    unit.params.push_back({"p" + std::to_string(i), {sizes[i]}, true});
  return {{unit}};
}

TEST(Layout, EveryElementBelongsToExactlyOneShard) {
  const std::vector<std::vector<int64_t>> models = {{1}, {3}, {1, 1, 1}, {64}, {65, 1, 1000}, {7, 4096, 2}};
  for (const std::vector<int64_t>& sizes : models) {
    for (const int64_t shards : {1, 2, 3, 4, 7, 8, 64}) {
      for (const DType dtype : {DType::kFp32, DType::kBf16}) {
        const UnitLayout unit = MakeLayout(OneUnit(sizes), shards, dtype).units[0];
        ASSERT_EQ(unit.shard_elements * shards, unit.bucket_elements);
        EXPECT_EQ(unit.shard_elements * BytesOf(dtype) % 16, 0);
        std::vector<int64_t> next(sizes.size(), 0);
        for (int64_t shard = 0; shard < shards; ++shard) {
          for (const ShardPiece& piece : PiecesOf(unit, shard)) {
            EXPECT_EQ(piece.param_begin, next[piece.param]);
            EXPECT_GT(piece.elements, 0);
            EXPECT_EQ(shard * unit.shard_elements + piece.shard_begin,
                      unit.params[piece.param].offset + piece.param_begin);
            EXPECT_LE(piece.shard_begin + piece.elements, unit.shard_elements);
            next[piece.param] += piece.elements;
          }
        }
        EXPECT_EQ(next, sizes);
      }
    }
  }
}

TEST(Layout, ParametersStartOn256Bytes) {
  for (const DType dtype : {DType::kFp32, DType::kBf16}) {
    const UnitLayout unit = MakeLayout(OneUnit({1, 100, 64, 129, 5}), 3, dtype).units[0];
    for (const ParamSlot& param : unit.params) EXPECT_EQ(param.offset * BytesOf(dtype) % 256, 0);
  }
}

TEST(Layout, AParameterSmallerThanTheShardsLeavesMostOfThemEmpty) {
  const UnitLayout unit = MakeLayout(OneUnit({3}), 8, DType::kFp32).units[0];
  EXPECT_EQ(PiecesOf(unit, 0).size(), 1u);
  for (int64_t shard = 1; shard < 8; ++shard) EXPECT_TRUE(PiecesOf(unit, shard).empty()) << shard;
}

TEST(Layout, PadsRealModelsByLessThanOnePercent) {
  for (const char* preset : {"llama3-8b", "llama3-70b"}) {
    const ModelFacts model = DescribeLlama(*FindPreset(preset), 1, 1, DType::kBf16);
    for (const int64_t shards : {8, 64, 1024}) {
      const Layout layout = MakeLayout(model, shards, DType::kBf16);
      EXPECT_EQ(layout.elements(), model.elements());
      EXPECT_GE(layout.padding_ratio(), 0);
      EXPECT_LE(layout.padding_ratio(), 0.01) << preset << " over " << shards;
    }
  }
}

}  // namespace
}  // namespace fsdpd
