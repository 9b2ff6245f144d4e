#include "fsdp/model/native/native_router.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/one_hot.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/topk.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <cmath>
#include <tuple>
#include <vector>

#include "fsdp/model/testing/fixed_seed.h"
#include "fsdp/model/unit/unit.h"

namespace fsdpd {
namespace {

constexpr int64_t kSamples = 3, kTokens = 12, kHidden = 5;
constexpr double kGradLoss = 0.25;

// Context with a loss gradient; `tensor_rank`: index in the tensor-parallel group.
class LossContext : public SingleRankContext {
 public:
  explicit LossContext(int64_t tensor_rank = 0) : tensor_rank_(tensor_rank) {}
  int64_t IndexIn(Group group) const override { return group == Group::kTensor ? tensor_rank_ : 0; }
  at::Tensor GradLoss() const override { return at::full({}, kGradLoss); }

 private:
  const int64_t tensor_rank_;
};

ExpertsConfig Config(bool normalized, double balance_loss = 0, double z_loss = 0) {
  ExpertsConfig config;
  config.count = 6;
  config.per_token = 2;
  config.normalized = normalized;
  config.balance_loss = balance_loss;
  config.z_loss = z_loss;
  return config;
}

struct Input {
  at::Tensor x = at::randn({kTokens, kHidden});
  at::Tensor router = at::randn({6, kHidden});
  at::Tensor bias = {};
  at::Tensor targets = at::zeros({kSamples, kTokens / kSamples}, at::kLong);  // All count.

  Routing Routed(const ExpertsConfig& config) const {
    LossContext context;
    return Route(x, {router, bias}, config, targets, &context);
  }
};

std::vector<int64_t> RowsOf(const Routing& routing) {
  const at::Tensor counts = routing.counts.to(at::kLong);
  return {counts.const_data_ptr<int64_t>(), counts.const_data_ptr<int64_t>() + counts.numel()};
}

TEST(NativeRouter, EveryChoiceHasRowOfItsExpert) {
  const Input in;
  const Routing routing = in.Routed(Config(true));
  ASSERT_EQ(routing.rows.order.size(0), kTokens * 2);  // Nothing dropped, no padding.
  const std::vector<int64_t> counts = RowsOf(routing);
  int64_t end = 0;
  for (int64_t e = 0; e < 6; ++e) {
    end += counts[e];
    EXPECT_EQ(routing.rows.ends[e].item<int64_t>(), end);
    EXPECT_EQ((routing.experts == e).sum().item<int64_t>(), counts[e]);
    EXPECT_EQ(routing.loads.sum(0)[e].item<double>(), static_cast<double>(counts[e]));
  }
  EXPECT_EQ(end, kTokens * 2);
}

TEST(NativeRouter, NormalizedWeightsSumToOne) {
  const Input in;
  for (const bool normalized : {true, false}) {
    const ExpertsConfig config = Config(normalized);
    const Routing routing = in.Routed(config);
    const at::Tensor sums = ChoiceWeights(routing, config).view({-1, 2}).sum(-1);
    if (normalized) {
      EXPECT_LT((sums - 1).abs().max().item<double>(), 1e-6);
    } else {
      EXPECT_LT(sums.max().item<double>(), 1);
    }
  }
}

// The rule experts_top_1_normalized warns about this: chosen / sum is 1 for any score.
TEST(NativeRouter, Top1NeedsRawScoresForGradient) {
  const Input in;
  for (const bool normalized : {true, false}) {
    ExpertsConfig config = Config(normalized);
    config.per_token = 1;
    const Routing routing = in.Routed(config);
    const at::Tensor grad = RouterBackward(routing, config, at::randn({kTokens, 1}), LossContext());
    EXPECT_EQ(grad.abs().max().item<double>() == 0, normalized);
  }
}

// Reference: the formulas of the header, with autograd.
struct Reference {
  at::Tensor weights;  // By choice.
  at::Tensor balance, z;

  Reference(const at::Tensor& logits, const ExpertsConfig& config, const at::Tensor& targets) {
    const at::Tensor raw = config.sigmoid ? logits.sigmoid() : at::softmax(logits, -1);
    const auto [chosen, experts] = at::topk(raw, config.per_token);
    const at::Tensor scores = raw / raw.sum(-1, true);
    weights = (config.normalized ? chosen / chosen.sum(-1, true) : chosen) * config.weight_scale;
    // [tokens x experts]
    const at::Tensor choices = at::one_hot(experts, config.count).sum(1).to(at::kFloat);
    const auto by_sample = [](const at::Tensor& t) { return t.unflatten(0, {kSamples, -1}); };
    const at::Tensor share =
        by_sample(choices).sum(1) / by_sample(choices).sum(at::IntArrayRef({1, 2})).unsqueeze(-1);
    // A sample's router loss is weighted like its cross-entropy: by the fraction of targets that count.
    const at::Tensor counted = (targets != kIgnoredTarget).sum(-1).to(at::kFloat);
    balance =
        ((share * by_sample(scores).mean(1)).sum(-1) * counted).sum() * static_cast<double>(config.count);
    z = (by_sample(at::logsumexp(logits, {-1}).square()).mean(-1) * counted).sum();
  }
};

// Samples of four tokens: all targets count, one does, none does.
const at::Tensor kMasked = at::tensor({0, 0, 0, 0, -100, -100, 0, -100, -100, -100, -100, -100}, at::kLong)
                               .view({kSamples, kTokens / kSamples});

TEST(NativeRouter, GradientsEqualAutogradWithBothLosses) {
  for (const auto& [normalized, sigmoid, masked] :
       {std::tuple(true, false, false), std::tuple(false, false, true), std::tuple(true, true, true),
        std::tuple(false, true, false)}) {
    for (const auto& [balance, z] :
         {std::pair(0.0, 0.0), std::pair(0.3, 0.0), std::pair(0.0, 0.2), std::pair(0.7, 0.1)}) {
      Input in;
      if (masked) in.targets = kMasked;
      ExpertsConfig config = Config(normalized, balance, z);
      config.sigmoid = sigmoid;
      config.weight_scale = sigmoid ? 1.5 : 1;
      const Routing routing = in.Routed(config);
      const at::Tensor grad_choices = at::randn({kTokens, 2});
      const LossContext context;
      const at::Tensor got = RouterBackward(routing, config, grad_choices.clone().view({-1, 1}), context);

      const at::Tensor logits = routing.logits.clone().set_requires_grad(true);
      const Reference reference(logits, config, in.targets);
      ((reference.weights * grad_choices).sum() + kGradLoss * (balance * reference.balance + z * reference.z))
          .backward();
      EXPECT_LT((got - logits.grad()).abs().max().item<double>(), 1e-5) << normalized << balance << z;
      EXPECT_GT(got.abs().max().item<double>(), 1e-2);
    }
  }
}

// The normalized weight of a single expert is always 1. Regression test: rounding error in its gradient,
// which the optimizer scales up, moved routers, so that runs that differed in rounding routed tokens
// differently.
TEST(NativeRouter, NormalizedTop1HasZeroGradient) {
  for (const bool sigmoid : {false, true}) {
    const Input in;
    ExpertsConfig config = Config(/*normalized=*/true);
    config.per_token = 1;
    config.sigmoid = sigmoid;
    config.weight_scale = sigmoid ? 2.5 : 1;
    const Routing routing = in.Routed(config);
    const at::Tensor got = RouterBackward(routing, config, at::randn({kTokens, 1}), LossContext());
    EXPECT_EQ(got.abs().max().item<double>(), 0) << sigmoid;
  }
}

TEST(NativeRouter, BiasAffectsSelectionOnly) {
  Input in;
  ExpertsConfig config = Config(false);
  config.sigmoid = true;
  in.bias = at::tensor({9.0F, 0.0F, 0.0F, 9.0F, 0.0F, 0.0F});
  const Routing routing = in.Routed(config);
  EXPECT_EQ(RowsOf(routing), (std::vector<int64_t>{kTokens, 0, 0, kTokens, 0, 0}));
  EXPECT_LT(ChoiceWeights(routing, config).max().item<double>(), 1);
}

TEST(NativeRouter, SelectsGroupsByTheirTwoBestScores) {
  Input in;
  ExpertsConfig config = Config(true);
  config.sigmoid = true;
  config.groups = 3;
  config.groups_per_token = 1;
  // The first expert is the best of all, but the last group has the two best.
  in.bias = at::tensor({9.0F, -9.0F, 0.0F, 0.0F, 5.0F, 5.0F});
  EXPECT_EQ(RowsOf(in.Routed(config)), (std::vector<int64_t>{0, 0, 0, 0, kTokens, kTokens}));
}

TEST(NativeRouter, SelectsGroupsByBestScoreWithTop1) {
  Input in;
  ExpertsConfig config = Config(true);
  config.sigmoid = true;
  config.groups = 3;
  config.groups_per_token = 1;
  config.groups_by_best = true;
  in.bias = at::tensor({9.0F, -9.0F, 0.0F, 0.0F, 5.0F, 5.0F});
  EXPECT_EQ(RowsOf(in.Routed(config)), (std::vector<int64_t>{kTokens, kTokens, 0, 0, 0, 0}));
}

TEST(NativeRouter, FirstTensorParallelRankAddsLosses) {
  const Input in;
  const ExpertsConfig config = Config(true, 0.5, 0.5);
  const Routing routing = in.Routed(config);
  const at::Tensor nothing = at::zeros_like(ChoiceWeights(routing, config));
  EXPECT_GT(RouterBackward(routing, config, nothing, LossContext(0)).abs().max().item<double>(), 1e-3);
  EXPECT_EQ(RouterBackward(routing, config, nothing, LossContext(1)).abs().max().item<double>(), 0);
}

TEST(NativeRouter, ReportsStatistics) {
  Input in;
  in.targets = kMasked;
  const ExpertsConfig config = Config(true);
  const Routing routing = in.Routed(config);
  const at::Tensor sums = RoutingSums(routing, config);
  const Reference reference(routing.logits, config, in.targets);
  const at::Tensor scores = at::softmax(routing.logits, -1);
  const auto fullest = routing.counts.max().item<double>();
  EXPECT_NEAR(sums[0].item<double>(), kTokens * fullest / (kTokens * 2 / 6.0), 1e-4);
  EXPECT_NEAR(sums[1].item<double>(), -(scores * scores.log()).sum().item<double>(), 1e-4);
  EXPECT_NEAR(sums[2].item<double>(), reference.balance.item<double>(), 1e-4);
  EXPECT_NEAR(sums[3].item<double>(), reference.z.item<double>(), 1e-3);
}

TEST(NativeRouter, UniformScoresHaveBalanceOneAndMaximalEntropy) {
  const ExpertsConfig config = Config(true);
  Input in;
  in.router.zero_();
  const at::Tensor sums = RoutingSums(in.Routed(config), config);
  EXPECT_NEAR(sums[2].item<double>(), kTokens, 1e-4);
  EXPECT_NEAR(sums[1].item<double>(), kTokens * std::log(6.0), 1e-4);
  EXPECT_NEAR(sums[0].item<double>(), kTokens * 3.0,
              1e-4);  // Ties: all tokens are routed to the same two of six experts.
}

}  // namespace
}  // namespace fsdpd
