#include "fsdp/optimizer/sgd.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "fsdp/model/testing/fixed_seed.h"
#include "fsdp/optimizer/sharded_params.h"
#include "fsdp/optimizer/testing/step_scalars.h"

namespace fsdpd {
namespace {

constexpr int64_t kElements = 100;

OptimizerConfig Config(double momentum, bool nesterov = false) {
  OptimizerConfig config;
  config.kind = OptimizerKind::kSgd;
  config.momentum = momentum;
  config.nesterov = nesterov;
  return config;
}

// 0 to 36 without decay, 37 to 99 with decay at twice the rate.
std::vector<std::vector<UpdateGroup>> TwoGroups() { return {{{0, 1, {{0, 37}}}, {0.25, 2, {{37, 63}}}}}; }

BucketShard MakeShard(const OptimizerConfig& config, at::ScalarType moments = at::kFloat) {
  BucketShard shard;
  shard.main = at::randn({kElements});
  if (config.momentum > 0) shard.moments = {at::zeros({kElements}, at::TensorOptions().dtype(moments))};
  return shard;
}

void Step(Sgd& sgd, int step, const BucketShard& shard, double lr, double divisor = 1,
          bool found_nonfinite = false) {
  sgd.BeginStep(step);
  sgd.Update(0, shard, ScalarsOf(lr, divisor, found_nonfinite));
}

// As in PyTorch's documentation, in double precision, dampening 0: the first step's momentum is its gradient.
struct Reference {
  double param, momentum = 0;
  bool first = true;

  void Step(const OptimizerConfig& config, double lr, double decay, double grad) {
    grad += decay * param;
    if (config.momentum > 0) {
      momentum = first ? grad : config.momentum * momentum + grad;
      first = false;
      grad = config.nesterov ? grad + config.momentum * momentum : momentum;
    }
    param -= lr * grad;
  }
};

class SgdVariants : public ::testing::TestWithParam<OptimizerConfig> {};

TEST_P(SgdVariants, MatchesTheFormulaInDouble) {
  BucketShard shard = MakeShard(GetParam());
  std::vector<Reference> references;
  for (int i = 0; i < kElements; ++i) references.push_back({shard.main[i].item<double>()});
  Sgd sgd(GetParam(), TwoGroups());
  for (int step = 1; step <= 10; ++step) {
    const double lr = 1e-2 / step;
    const double divisor = step % 2 == 0 ? 4 : 1;
    shard.grad = at::randn({kElements});
    for (int i = 0; i < kElements; ++i) {
      const double grad = shard.grad[i].item<double>() / divisor;
      references[i].Step(GetParam(), i < 37 ? lr : 2 * lr, i < 37 ? 0 : 0.25, grad);
    }
    Step(sgd, step, shard, lr, divisor);
  }
  for (int i = 0; i < kElements; ++i)
    EXPECT_NEAR(shard.main[i].item<double>(), references[i].param, 1e-6) << i;
}

TEST_P(SgdVariants, SkippedStepIsBitIdentical) {
  BucketShard shard = MakeShard(GetParam());
  Sgd sgd(GetParam(), TwoGroups());
  for (int step = 1; step <= 4; ++step) {
    const bool skip = step % 2 == 1;
    const at::Tensor main = shard.main.clone();
    const at::Tensor moment = shard.moments.empty() ? at::Tensor() : shard.moments[0].clone();
    shard.grad = skip ? at::randn({kElements}) / 0.0f : at::randn({kElements});
    Step(sgd, step, shard, 1e-2, 1, skip);
    EXPECT_EQ(shard.main.equal(main), skip);
    if (moment.defined()) {
      EXPECT_EQ(shard.moments[0].equal(moment), skip);
    }
  }
}

// LibTorch's kernel rounds differently at the end of a tensor.
TEST_P(SgdVariants, IsIndependentOfSharding) {
  const auto group = [](int64_t elements) { return std::vector<UpdateGroup>{{0.25, 1, {{0, elements}}}}; };
  for (int64_t n = 1; n <= 100; ++n) {
    const at::Tensor main = at::randn({n}), momentum = at::randn({n}), grad = at::randn({n});
    const auto update = [&](const std::vector<int64_t>& parts) {
      const BucketShard all = {main.clone(), {momentum.clone()}, grad.clone()};
      std::vector<std::vector<UpdateGroup>> groups;
      for (const int64_t elements : parts) groups.push_back(group(elements));
      Sgd sgd(GetParam(), groups);
      sgd.BeginStep(1);
      int64_t begin = 0;
      for (size_t i = 0; i < parts.size(); begin += parts[i++]) {
        BucketShard part = {all.main.narrow(0, begin, parts[i]), {}, all.grad.narrow(0, begin, parts[i])};
        if (GetParam().momentum > 0) part.moments = {all.moments[0].narrow(0, begin, parts[i])};
        sgd.Update(static_cast<int>(i), part, ScalarsOf(1e-2, 3));
      }
      return all;
    };
    const BucketShard whole = update({n});
    for (int64_t cut = 1; cut < n; ++cut) {
      const BucketShard both = update({cut, n - cut});
      ASSERT_TRUE(both.main.equal(whole.main)) << n << " elements cut at " << cut;
      ASSERT_TRUE(both.moments[0].equal(whole.moments[0])) << n << " elements cut at " << cut;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, SgdVariants,
                         ::testing::Values(Config(0), Config(0.9), Config(0.9, /*nesterov=*/true)));

// Small integers and powers of two: every value is exact.
TEST(Sgd, FirstMomentumIsTheGradient) {
  const OptimizerConfig config = Config(0.5);
  BucketShard shard;
  shard.main = at::tensor({8.0f, -4.0f});
  shard.moments = {at::zeros({2})};
  Sgd sgd(config, {{{0.5, 1, {{0, 2}}}}});
  shard.grad = at::tensor({1.0f, 1.0f});
  Step(sgd, 1, shard, 0.5, 1, /*found_nonfinite=*/true);
  shard.grad = at::tensor({4.0f, 8.0f});
  Step(sgd, 2, shard, 0.5, /*divisor=*/2);
  EXPECT_TRUE(shard.moments[0].equal(at::tensor({6.0f, 2.0f})));  // 4/2 + 0.5 x 8, 8/2 - 0.5 x 4.
  EXPECT_TRUE(shard.main.equal(at::tensor({5.0f, -5.0f})));
}

// Three steps of torch.optim.SGD(lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1) in float64.
TEST(Sgd, MatchesTorchOptim) {
  BucketShard shard;
  shard.main = at::tensor({1.0f, -2.0f, 0.5f});
  shard.moments = {at::zeros({3})};
  Sgd sgd(Config(0.9, /*nesterov=*/true), {{{0.1, 1, {{0, 3}}}}});
  for (int step = 1; step <= 3; ++step) {
    shard.grad = at::tensor({1.0f, -3.0f, 0.25f}) * step;
    Step(sgd, step, shard, 0.1);
  }
  EXPECT_NEAR(shard.main[0].item<double>(), -0.517556649000, 1e-6);
  EXPECT_NEAR(shard.main[1].item<double>(), 2.473563888000, 1e-6);
  EXPECT_NEAR(shard.main[2].item<double>(), 0.100834323000, 1e-6);
}

TEST(Sgd, RoundsNarrowMomentumAfterEachStep) {
  const OptimizerConfig config = Config(0.9);
  BucketShard narrow = MakeShard(config, at::kBFloat16);
  BucketShard wide = narrow;
  wide.main = narrow.main.clone();
  wide.moments = {at::zeros({kElements})};
  Sgd narrow_sgd(config, TwoGroups());
  Sgd wide_sgd(config, TwoGroups());
  for (int step = 1; step <= 3; ++step) {
    narrow.grad = at::randn({kElements}).to(at::kBFloat16);
    wide.grad = narrow.grad.to(at::kFloat);
    Step(narrow_sgd, step, narrow, 1e-2, 3);
    Step(wide_sgd, step, wide, 1e-2, 3);
    wide.moments[0] = wide.moments[0].to(at::kBFloat16).to(at::kFloat);
    EXPECT_TRUE(wide.main.equal(narrow.main));
    EXPECT_TRUE(wide.moments[0].equal(narrow.moments[0].to(at::kFloat)));
  }
}

}  // namespace
}  // namespace fsdpd
