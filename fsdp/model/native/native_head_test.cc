#include "fsdp/model/native/native_head.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include "fsdp/model/testing/fixed_seed.h"

namespace fsdpd {
namespace {

constexpr int64_t kHidden = 6, kVocab = 17;

// Number of tokens (one chunk, or two and a part), whether there is a bias, logit scale, soft cap.
using Case = std::tuple<int64_t, bool, double, double>;

class HeadLossTest : public ::testing::TestWithParam<Case> {
 protected:
  HeadLossTest() {
    const auto [tokens, has_bias, scale, cap] = GetParam();
    hidden_ = at::randn({tokens, kHidden});
    targets_ = at::randint(kVocab, {tokens}, at::kLong);
    targets_[1] = kIgnoredTarget;
    params_ = {at::randn({kVocab, kHidden}), has_bias ? at::randn({kVocab}) : at::Tensor(), scale, cap};
  }

  struct Result {
    at::Tensor loss, hidden, weight, bias;
  };

  // The formula, in double precision and with autograd.
  Result Expected() const {
    const auto leaf = [](const at::Tensor& x) { return x.to(at::kDouble).set_requires_grad(true); };
    const at::Tensor h = leaf(hidden_), w = leaf(params_.weight);
    const at::Tensor b = params_.bias.defined() ? leaf(params_.bias) : at::Tensor();
    at::Tensor logits = at::linear(h, w, b) * params_.logit_scale;
    if (params_.soft_cap != 0) logits = at::tanh(logits / params_.soft_cap) * params_.soft_cap;
    const at::Tensor counts = targets_.ne(kIgnoredTarget);
    const at::Tensor logs = at::log_softmax(logits, 1).gather(1, (targets_ * counts).unsqueeze(1));
    const at::Tensor loss = -(logs.squeeze(1) * counts).sum();
    (loss * 3).backward();
    return {loss.detach(), h.grad(), w.grad(), b.defined() ? b.grad() : at::Tensor()};
  }

  static void ExpectNear(const at::Tensor& value, const at::Tensor& expected) {
    if (!expected.defined()) return;
    EXPECT_LE((value.to(at::kDouble) - expected).norm().item<double>(),
              1e-5 * expected.norm().item<double>());
  }

  at::Tensor hidden_, targets_;
  HeadParams params_;
};

TEST_P(HeadLossTest, EqualsTheFormula) {
  const Result expected = Expected();
  const at::NoGradGuard no_grad;
  ExpectNear(HeadLoss(hidden_, targets_, params_), expected.loss);
  for (const bool accumulate : {false, true}) {
    HeadGrads grads{at::ones_like(params_.weight), {}, accumulate};
    if (params_.bias.defined()) grads.bias = at::ones_like(params_.bias);
    const Unit::LossAndGrad result =
        HeadLossBackward(hidden_, targets_, at::full({}, 3.0, at::kFloat), params_, grads);
    ExpectNear(result.loss, expected.loss);
    ExpectNear(result.grad_hidden, expected.hidden);
    ExpectNear(grads.weight - (accumulate ? 1 : 0), expected.weight);
    if (params_.bias.defined()) ExpectNear(grads.bias - (accumulate ? 1 : 0), expected.bias);
  }
}

TEST_P(HeadLossTest, FrozenParametersGetNoGradient) {
  const Result expected = Expected();
  const at::NoGradGuard no_grad;
  const Unit::LossAndGrad result =
      HeadLossBackward(hidden_, targets_, at::full({}, 3.0, at::kFloat), params_, {at::Tensor()});
  ExpectNear(result.grad_hidden, expected.hidden);
}

INSTANTIATE_TEST_SUITE_P(Heads, HeadLossTest,
                         ::testing::Values(Case{10, false, 1, 0}, Case{10, true, 0.25, 0},
                                           Case{10, true, 1, 2.5}, Case{10, false, 0.5, 30},
                                           Case{2 * kLossChunkTokens + 3, true, 0.5, 2.5}));

}  // namespace
}  // namespace fsdpd
