#include "fsdp/optimizer/sharded_params.h"

#include <ATen/Parallel.h>
#include <ATen/ops/arange.h>
#include <gtest/gtest.h>

#include <mutex>
#include <numeric>
#include <set>
#include <stdexcept>
#include <thread>

#include "fsdp/kernels/fill_normals.h"

namespace fsdpd {
namespace {

// Two trainable parameters, of 5 and 300 elements with padding between them, and a frozen one of 7: two
// buckets.
ModelFacts SmallModel() {
  ModelFacts model;
  model.units.resize(1);
  model.units[0].name = "unit";
  model.units[0].params.resize(3);
  model.units[0].params[0].name = "small";
  model.units[0].params[0].shape = {5};
  model.units[0].params[1].name = "frozen";
  model.units[0].params[1].shape = {7};
  model.units[0].params[1].trainable = false;
  model.units[0].params[2].name = "large";
  model.units[0].params[2].shape = {30, 10};
  return model;
}

Layout LayoutOver(int64_t shards, int64_t pieces) {
  LayoutOptions options;
  if (shards > 1) options.groups.shard = Group::kShard;
  if (pieces > 1) options.groups.pieces = Group::kReplicate;
  options.shards = shards;
  options.pieces = pieces;
  return MakeLayout(SmallModel(), options);
}

// The model in the order of its facts is 1, 2, 3, ... 312.
at::Tensor Counting(int /*unit*/, int param, int64_t begin, int64_t elements) {
  const int64_t first = param == 0 ? 1 : param == 1 ? 6 : 13;
  return at::arange(first + begin, first + begin + elements, at::kFloat);
}

Spec SpecOf(Strategy strategy) {
  Spec spec;
  spec.strategy = strategy;
  return spec;
}

TEST(ShardedParams, EveryMeshHoldsTheSameModel) {
  std::vector<float> expected(312);
  std::iota(expected.begin(), expected.end(), 1.0f);
  for (const int inner : {1, 2, 3, 4, 8}) {
    for (const int outer : {1, 2, 3}) {
      const Layout layout = LayoutOver(inner, outer);
      std::vector<float> model(layout.elements());
      double sum = 0;
      for (int rank = 0; rank < inner * outer; ++rank) {
        const auto params = ShardedParams::Make(SpecOf(Strategy::kOptimGradsParams), layout,
                                                {Mesh::DataParallel(outer, inner), rank}, at::kCPU, Counting);
        ASSERT_TRUE(params.ok()) << params.status();
        params->CopyTo(&model);
        for (int b = 0; b < params->size(); ++b) sum += params->bucket(b).main.sum().item<double>();
      }
      EXPECT_EQ(model, expected) << inner << " x " << outer;
      EXPECT_EQ(sum, 312.0 * 313 / 2) << inner << " x " << outer;  // Padding is zero.
    }
  }
}

TEST(ShardedParams, SplitFp32HoldsTheSameModel) {
  constexpr float kLastBits = 1.0f / 1024;  // Below bf16's precision for all of these values.
  std::vector<float> expected(312);
  std::iota(expected.begin(), expected.end(), 1 + kLastBits);
  const auto initial = [](int unit, int param, int64_t begin, int64_t elements) {
    return Counting(unit, param, begin, elements).add_(kLastBits);
  };
  Layout layout = LayoutOver(3, 2);
  for (Bucket& bucket : layout.buckets) bucket.types.split_fp32 = true;
  std::vector<float> model(layout.elements());
  for (int rank = 0; rank < 6; ++rank) {
    const auto params = ShardedParams::Make(SpecOf(Strategy::kOptimGradsParams), layout,
                                            {Mesh::DataParallel(2, 3), rank}, at::kCPU, initial);
    ASSERT_TRUE(params.ok()) << params.status();
    params->CopyTo(&model);
    for (int b = 0; b < params->size(); ++b) {
      EXPECT_FALSE(params->bucket(b).main.defined());
      EXPECT_TRUE(params->bucket(b).stored().equal(params->bucket(b).split.Read().to(at::kBFloat16)));
    }
  }
  EXPECT_EQ(model, expected);
}

TEST(ShardedParams, OneRankWritesReplicatedShards) {
  for (const int pieces : {1, 2}) {
    const Layout layout = LayoutOver(2, pieces);
    std::vector<int> writers(layout.elements(), 0);
    for (int rank = 0; rank < 4; ++rank) {
      const auto params = ShardedParams::Make(SpecOf(Strategy::kOptimGradsParams), layout,
                                              {Mesh::DataParallel(2, 2), rank}, at::kCPU, Counting);
      ASSERT_TRUE(params.ok()) << params.status();
      std::vector<float> model(layout.elements(), 0);
      params->CopyTo(&model);
      for (size_t i = 0; i < model.size(); ++i) writers[i] += model[i] != 0;
    }
    EXPECT_EQ(writers, std::vector<int>(layout.elements(), 1)) << pieces << " pieces a shard";
  }
}

TEST(ShardedParams, DrawsOnlyOwnedElements) {
  const Layout layout = LayoutOver(8, 1);
  std::mutex mutex;
  std::set<int> drawn;
  int64_t elements_drawn = 0;
  const auto last = ShardedParams::Make(SpecOf(Strategy::kOptim), layout, {Mesh::DataParallel(1, 8), 7},
                                        at::kCPU, [&](int unit, int param, int64_t begin, int64_t elements) {
                                          const std::lock_guard<std::mutex> lock(mutex);
                                          drawn.insert(param);
                                          elements_drawn += elements;
                                          return Counting(unit, param, begin, elements);
                                        });
  ASSERT_TRUE(last.ok());
  EXPECT_EQ(drawn.count(0), 0u);
  int64_t own = 0;
  for (const Bucket& bucket : layout.buckets) own += bucket.main_elements;
  EXPECT_LE(elements_drawn, own);
}

TEST(ShardedParams, ThreadsDrawTheSameModel) {
  constexpr int64_t kElements = (5 << 20) + 7;  // Six chunks; each of these integers is exact in fp32.
  ModelFacts model = SmallModel();
  model.units[0].params[2].shape = {kElements};
  const Layout layout = MakeLayout(model, {});
  const int before = at::get_num_threads();
  for (const int threads : {1, 4}) {
    at::set_num_threads(threads);
    std::mutex mutex;
    std::set<std::thread::id> ids;
    const auto params =
        ShardedParams::Make(SpecOf(Strategy::kOptim), layout, {Mesh::DataParallel(1, 1), 0}, at::kCPU,
                            [&](int unit, int param, int64_t begin, int64_t elements) {
                              const std::lock_guard<std::mutex> lock(mutex);
                              ids.insert(std::this_thread::get_id());
                              return Counting(unit, param, begin, elements);
                            });
    ASSERT_TRUE(params.ok()) << params.status();
    std::vector<float> drawn(layout.elements()), expected(layout.elements());
    params->CopyTo(&drawn);
    std::iota(expected.begin(), expected.end(), 1.0f);
    EXPECT_TRUE(drawn == expected) << threads;
    if (threads == 1) EXPECT_EQ(ids, std::set<std::thread::id>{std::this_thread::get_id()});
  }
  at::set_num_threads(before);
}

// The kernel that draws on a GPU maps elements of a tensor-parallel shard to the whole parameter.
TEST(ShardedParams, KernelSliceMatchesWholeRuns) {
  const std::vector<int64_t> shape = {3, 5, 7};
  for (const int dim : {0, 1, 2}) {
    for (const int64_t parts : {1, 2, 3}) {
      for (int64_t part = 0; part < parts; ++part) {
        const TensorPartition partition{dim, parts};
        const auto runs = FullRuns(shape, partition, part, 0, 105);
        const kernels::TensorShard slice{runs.front().elements, parts, part};
        int64_t i = 0;
        for (const ElementRun& run : runs) {
          for (int64_t k = 0; k < run.elements; ++k)
            EXPECT_EQ(kernels::FullElement(slice, i++), run.begin + k) << dim << " " << part << "/" << parts;
        }
        EXPECT_EQ(i, 105);
      }
    }
  }
}

TEST(ShardedParams, ReturnsExceptionsOfInitialValues) {
  const int before = at::get_num_threads();
  at::set_num_threads(4);
  const auto params = ShardedParams::Make(
      SpecOf(Strategy::kOptim), LayoutOver(1, 1), {Mesh::DataParallel(1, 1), 0}, at::kCPU,
      [](int, int, int64_t, int64_t) -> at::Tensor { throw std::runtime_error("no such value"); });
  at::set_num_threads(before);
  EXPECT_EQ(params.status(), absl::InternalError("no such value"));
}

TEST(ShardedParams, UnshardedAxisReplicates) {
  const Layout layout = LayoutOver(2, 1);
  const auto one = ShardedParams::Make(SpecOf(Strategy::kOptim), layout, {Mesh::DataParallel(2, 2), 1},
                                       at::kCPU, Counting);
  const auto other = ShardedParams::Make(SpecOf(Strategy::kOptim), layout, {Mesh::DataParallel(2, 2), 3},
                                         at::kCPU, Counting);
  ASSERT_TRUE(one.ok() && other.ok());
  for (int b = 0; b < one->size(); ++b) EXPECT_TRUE(one->bucket(b).main.equal(other->bucket(b).main));
}

TEST(ShardedParams, FrozenBucketsHaveNoMomentsOrGradient) {
  const Spec spec = SpecOf(Strategy::kOptimGrads);
  Layout layout = LayoutOver(2, 2);
  for (Bucket& bucket : layout.buckets) bucket.types.moment = bucket.types.gradient = DType::kBf16;
  const auto params = ShardedParams::Make(spec, layout, {Mesh::DataParallel(2, 2), 3}, at::kCPU, Counting);
  ASSERT_TRUE(params.ok());
  ASSERT_EQ(params->size(), 2);
  for (int b = 0; b < 2; ++b) {
    const Bucket& bucket = layout.buckets[b];
    const BucketShard& shard = params->bucket(b);
    EXPECT_EQ(shard.main.numel(), bucket.main_elements);
    EXPECT_EQ(shard.moments.size(), bucket.trainable ? 2u : 0u);
    EXPECT_EQ(shard.grad.defined(), bucket.trainable);
    if (!bucket.trainable) continue;
    EXPECT_EQ(shard.moments[0].scalar_type(), at::kBFloat16);
    EXPECT_EQ(shard.grad.scalar_type(), at::kBFloat16);
    EXPECT_EQ(params->grad_shard(b).numel(), bucket.shard_elements);
    // The second replica has the second half.
    EXPECT_EQ(shard.grad.data_ptr(), params->grad_shard(b)[bucket.main_elements].data_ptr());
  }
}

TEST(ShardedParams, NoShardGradientsAreBound) {
  const Layout layout = LayoutOver(1, 1);
  auto params = ShardedParams::Make(SpecOf(Strategy::kNoShard), layout, {Mesh::DataParallel(1, 2), 1},
                                    at::kCPU, Counting);
  ASSERT_TRUE(params.ok());
  const int bucket = layout.buckets[0].trainable ? 0 : 1;
  EXPECT_FALSE(params->grad_shard(bucket).defined());
  const at::Tensor reduce = at::arange(layout.buckets[bucket].bucket_elements, at::kFloat);
  params->BindGradShard(bucket, reduce);
  EXPECT_TRUE(params->bucket(bucket).grad.equal(reduce));
}

}  // namespace
}  // namespace fsdpd
