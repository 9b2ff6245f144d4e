#include "fsdp/engine/adamw.h"

#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>

namespace fsdpd {
namespace {

Layout MixedDecay(int64_t shards) {
  ModelFacts model;
  model.units.resize(1);
  model.units[0].params = {
      {"norm", {64}, false}, {"a", {64}, true}, {"b", {64}, true}, {"norm2", {64}, false}};
  return MakeLayout(model, shards, DType::kFp32);
}

// AdamW as its paper and PyTorch's documentation write it, in double.
struct Reference {
  double param, exp_avg = 0, exp_avg_sq = 0;

  void Step(const AdamWConfig& config, int step, double lr, double grad, bool decay) {
    if (decay) param -= lr * config.weight_decay * param;
    exp_avg = config.beta1 * exp_avg + (1 - config.beta1) * grad;
    exp_avg_sq = config.beta2 * exp_avg_sq + (1 - config.beta2) * grad * grad;
    const double corrected = exp_avg / (1 - std::pow(config.beta1, step));
    const double denominator = std::sqrt(exp_avg_sq / (1 - std::pow(config.beta2, step))) + config.eps;
    param -= lr * corrected / denominator;
  }
};

TEST(AdamW, EqualsTheFormulaInDoubleOverTenSteps) {
  const Layout layout = MixedDecay(1);
  const AdamWConfig config{1e-2, 0.9, 0.95, 1e-8, 0.1};
  UnitShard shard{at::randn({256}), at::zeros({256}), at::zeros({256}), at::Tensor()};
  std::vector<Reference> reference;
  for (int i = 0; i < 256; ++i) reference.push_back({shard.main[i].item<double>()});
  AdamW adamw(config, layout, 0, at::kCPU);
  for (int step = 1; step <= 10; ++step) {
    const double lr = config.lr / step;
    shard.grad = at::randn({256});
    const at::Tensor divisor = step % 2 == 0 ? at::full({}, 4.0) : at::Tensor();
    for (int i = 0; i < 256; ++i) {
      const double grad = shard.grad[i].item<double>() / (step % 2 == 0 ? 4 : 1);
      reference[i].Step(config, step, lr, grad, /*decay=*/i >= 64 && i < 192);
    }
    adamw.BeginStep(step, lr);
    adamw.Update(0, shard, divisor);
  }
  for (int i = 0; i < 256; ++i) EXPECT_NEAR(shard.main[i].item<double>(), reference[i].param, 2e-6) << i;
}

TEST(AdamW, RunsCoverAShardWithoutGapsAndMergeEqualNeighbours) {
  const std::vector<DecayRun> whole = DecayRuns(MixedDecay(1).units[0], 0);
  ASSERT_EQ(whole.size(), 3u);
  EXPECT_FALSE(whole[0].decay);
  EXPECT_EQ(whole[1].begin, 64);
  EXPECT_EQ(whole[1].elements, 128);
  EXPECT_TRUE(whole[1].decay);
  EXPECT_EQ(whole[2].begin, 192);
  const std::vector<DecayRun> half = DecayRuns(MixedDecay(2).units[0], 1);
  ASSERT_EQ(half.size(), 2u);
  EXPECT_TRUE(half[0].decay);
  EXPECT_EQ(half[1].begin, 64);
}

TEST(AdamW, AShardOfPaddingAloneIsLeftAlone) {
  ModelFacts model;
  model.units.resize(1);
  model.units[0].params = {{"tiny", {1}, true}};
  const Layout layout = MakeLayout(model, 8, DType::kFp32);
  const int64_t elements = layout.units[0].shard_elements;
  EXPECT_TRUE(DecayRuns(layout.units[0], 7).empty());
  AdamW adamw({}, layout, 7, at::kCPU);
  adamw.BeginStep(1, 0.1);
  adamw.Update(
      0, {at::zeros({elements}), at::zeros({elements}), at::zeros({elements}), at::zeros({elements})}, {});
}

}  // namespace
}  // namespace fsdpd
