#include "fsdp/optimizer/make_optimizer.h"

#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "fsdp/optimizer/sharded_params.h"
#include "fsdp/optimizer/testing/step_scalars.h"

namespace fsdpd {
namespace {

// One bucket of 16 elements, the first half at rate 1 and the second at 3, in 2 x 2 main shards.
Layout TwoAxes() {
  Bucket bucket;
  bucket.params = {{0, "slow", {8}, 0, 1, 0, 8}, {1, "fast", {8}, 0, 3, 8, 8}};
  bucket.elements = bucket.bucket_elements = 16;
  bucket.groups = {Group::kShard, Group::kReplicate, Group::kShard, Group::kReplicate};
  bucket.shards = bucket.pieces = 2;
  bucket.shard_elements = 8;
  bucket.main_elements = 4;
  Layout layout;
  layout.buckets = {bucket};
  return layout;
}

// Result of one update of ones with a gradient of ones at rate 1.
at::Tensor AfterOneStep(const Spec& spec, const Layout& layout, MeshPosition position) {
  const int64_t elements = layout.buckets[0].main_elements;
  BucketShard shard{at::ones({elements}), {}, at::ones({elements})};
  for (int i = 0; i < spec.optimizer.moments(); ++i) shard.moments.push_back(at::zeros({elements}));
  const auto optimizer = MakeOptimizer(spec, layout, position, at::kCPU);
  optimizer->BeginStep(1);
  optimizer->Count(ScalarsOf(1));
  optimizer->Update(0, shard, ScalarsOf(1));
  return shard.main;
}

TEST(Optimizer, AppliesRatesPerParameter) {
  Spec spec;
  spec.optimizer.kind = OptimizerKind::kSgd;
  for (int inner : {0, 1}) {
    for (int outer : {0, 1}) {
      const at::Tensor main = AfterOneStep(spec, TwoAxes(), {Mesh::DataParallel(2, 2), 2 * outer + inner});
      EXPECT_TRUE(main.equal(at::full({4}, inner == 0 ? 0.0f : -2.0f))) << inner << " " << outer;
    }
  }
}

TEST(Optimizer, ReplicasUpdateTheWholeBucket) {
  Spec spec;
  spec.optimizer.kind = OptimizerKind::kSgd;
  Layout layout = TwoAxes();
  layout.buckets[0].groups = {};
  layout.buckets[0].shards = layout.buckets[0].pieces = 1;
  layout.buckets[0].shard_elements = layout.buckets[0].main_elements = 16;
  const at::Tensor main = AfterOneStep(spec, layout, {Mesh::DataParallel(2, 2), 3});
  EXPECT_TRUE(main.narrow(0, 0, 8).equal(at::zeros({8})));
  EXPECT_TRUE(main.narrow(0, 8, 8).equal(at::full({8}, -2.0f)));
}

TEST(Optimizer, SelectsTheSpecsOptimizer) {
  Spec spec;
  spec.optimizer.eps = 1;  // AdamW's first step is then 1 / (1 + 1) of the rate.
  EXPECT_NEAR(AfterOneStep(spec, TwoAxes(), {Mesh::DataParallel(2, 2), 0})[0].item<double>(), 0.5, 1e-6);
  spec.optimizer.kind = OptimizerKind::kSgd;
  spec.optimizer.momentum = 0.5;
  spec.optimizer.nesterov = true;
  EXPECT_EQ(AfterOneStep(spec, TwoAxes(), {Mesh::DataParallel(2, 2), 0})[0].item<double>(), -0.5);
}

}  // namespace
}  // namespace fsdpd
