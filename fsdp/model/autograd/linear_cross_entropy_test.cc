#include "fsdp/model/autograd/linear_cross_entropy.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include "fsdp/model/testing/fixed_seed.h"

namespace fsdpd {
namespace {

constexpr int64_t kTokens = 10, kHidden = 6, kVocab = 17;

struct Result {
  at::Tensor loss, grad_hidden, grad_weight;
};

class LinearCrossEntropyTest : public ::testing::TestWithParam<int64_t> {  // Tokens per chunk.
 protected:
  Result Chunked() const {
    const at::Tensor h = hidden_.clone().set_requires_grad(true), w = weight_.clone().set_requires_grad(true);
    const at::Tensor loss = LinearCrossEntropy(h, w, targets_, GetParam());
    (loss * 3).backward();
    return {loss.detach(), h.grad(), w.grad()};
  }

  // Reference: the formula in double precision, token by token.
  Result Expected() const {
    const at::Tensor h = hidden_.to(at::kDouble).set_requires_grad(true);
    const at::Tensor w = weight_.to(at::kDouble).set_requires_grad(true);
    const at::Tensor logs = at::log_softmax(at::matmul(h, w.t()), 1);
    at::Tensor loss = (logs * 0).sum();
    for (int64_t i = 0; i < kTokens; ++i) {
      const auto target = targets_[i].item<int64_t>();
      if (target != kIgnoredTarget) loss = loss - logs[i][target];
    }
    (loss * 3).backward();
    return {loss.detach(), h.grad(), w.grad()};
  }

  static void ExpectNear(const at::Tensor& value, const at::Tensor& expected) {
    EXPECT_LE((value.to(at::kDouble) - expected).abs().max().item<double>(),
              2e-6 * expected.abs().max().item<double>());
  }

  void ExpectEqualsTheFormula() const {
    const Result result = Chunked(), expected = Expected();
    ExpectNear(result.loss, expected.loss);
    ExpectNear(result.grad_hidden, expected.grad_hidden);
    ExpectNear(result.grad_weight, expected.grad_weight);
  }

  const at::Tensor hidden_ = at::randn({kTokens, kHidden});
  const at::Tensor weight_ = at::randn({kVocab, kHidden});
  const at::Tensor targets_ = at::randint(kVocab, {kTokens}, at::kLong);
};

TEST_P(LinearCrossEntropyTest, EqualsFormula) { ExpectEqualsTheFormula(); }

TEST_P(LinearCrossEntropyTest, IgnoredTargetsDoNotCount) {
  at::Tensor targets = targets_;  // Shares the storage.
  targets[0].fill_(kIgnoredTarget);
  targets.narrow(0, 4, 4).fill_(kIgnoredTarget);  // Including a whole chunk of three.
  ExpectEqualsTheFormula();
  targets.fill_(kIgnoredTarget);
  const Result nothing = Chunked();
  EXPECT_EQ(nothing.loss.item<float>(), 0);
  EXPECT_EQ(nothing.grad_hidden.abs().max().item<float>(), 0);
  EXPECT_EQ(nothing.grad_weight.abs().max().item<float>(), 0);
}

TEST_P(LinearCrossEntropyTest, FrozenMatrixHasNoGradient) {
  const at::Tensor h = hidden_.clone().set_requires_grad(true);
  LinearCrossEntropy(h, weight_, targets_, GetParam()).backward();
  EXPECT_TRUE(h.grad().defined());
  EXPECT_FALSE(weight_.grad().defined());
}

INSTANTIATE_TEST_SUITE_P(Chunks, LinearCrossEntropyTest, ::testing::Values(1, 3, 5, 10, 1024));

TEST(LinearCrossEntropy, SupportsBf16) {
  const at::Tensor h = at::randn({4, 8}).to(at::kBFloat16).set_requires_grad(true);
  const at::Tensor w = at::randn({5, 8}).to(at::kBFloat16).set_requires_grad(true);
  const at::Tensor loss = LinearCrossEntropy(h, w, at::randint(5, {4}, at::kLong), 2);
  loss.backward();
  EXPECT_EQ(loss.scalar_type(), at::kFloat);
  EXPECT_EQ(w.grad().scalar_type(), at::kBFloat16);
}

}  // namespace
}  // namespace fsdpd
