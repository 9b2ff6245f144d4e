#include "fsdp/engine/sharded_params.h"

#include <ATen/ops/arange.h>
#include <gtest/gtest.h>

#include <numeric>
#include <set>

namespace fsdpd {
namespace {

// Two parameters, 5 and 300 elements; 256-byte alignment puts padding between them.
Layout TwoParams(int64_t shards) {
  ModelFacts model;
  model.units.resize(1);
  model.units[0].name = "unit";
  model.units[0].params = {{"small", {5}, false}, {"large", {30, 10}, true}};
  return MakeLayout(model, shards, DType::kFp32);
}

// Values 1 .. 5 and 6 .. 305: the model in layout order is 1, 2, 3, ...
at::Tensor Counting(int unit, int param) {
  return param == 0 ? at::arange(1, 6, at::kFloat) : at::arange(6, 306, at::kFloat).view({30, 10});
}

TEST(ShardedParams, ShardsOfAnyWorldAreTheSameModel) {
  for (int64_t shards : {1, 2, 3, 4, 8}) {
    const Layout layout = TwoParams(shards);
    std::vector<float> model(layout.elements());
    double sum = 0;
    for (int64_t shard = 0; shard < shards; ++shard) {
      const auto params = ShardedParams::Make(layout, shard, at::kCPU, Counting);
      ASSERT_TRUE(params.ok()) << params.status();
      params->CopyTo(layout, shard, &model);
      sum += params->unit(0).main.sum().item<double>();
    }
    std::vector<float> expected(305);
    std::iota(expected.begin(), expected.end(), 1.0f);
    EXPECT_EQ(model, expected) << shards;
    EXPECT_EQ(sum, 305.0 * 306 / 2) << shards;  // Padding is zero.
  }
}

TEST(ShardedParams, MakesOnlyParametersOfWhichTheRankOwnsAPiece) {
  const Layout layout = TwoParams(8);
  std::set<int> made;
  const auto last = ShardedParams::Make(layout, 7, at::kCPU, [&](int unit, int param) {
    made.insert(param);
    return Counting(unit, param);
  });
  ASSERT_TRUE(last.ok());
  EXPECT_EQ(made.count(0), 0u);
}

}  // namespace
}  // namespace fsdpd
