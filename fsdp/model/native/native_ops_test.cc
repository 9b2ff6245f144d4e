#include "fsdp/model/native/native_ops.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/full.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/rms_norm.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>

#include "fsdp/model/testing/fixed_seed.h"
#include "fsdp/model/unit/unit.h"

namespace fsdpd {
namespace {

at::Tensor SmallIntegers(at::IntArrayRef shape) { return at::randint(-4, 5, shape, at::kFloat); }

at::Tensor Leaf(const at::Tensor& x) { return x.to(at::kDouble).set_requires_grad(true); }

void ExpectNear(const at::Tensor& got, const at::Tensor& want, double relative = 1e-5) {
  ASSERT_EQ(got.sizes(), want.sizes());
  EXPECT_LE((got.to(at::kDouble) - want).norm().item<double>(), relative * want.norm().item<double>());
}

// Small integers and their sums are exact in every type used here.
TEST(WeightGradInto, IsExactInEveryBufferType) {
  const at::Tensor grad_out = SmallIntegers({6, 3}), x = SmallIntegers({6, 5});
  const at::Tensor expected = at::matmul(grad_out.t(), x);
  for (const at::ScalarType compute : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const at::ScalarType buffer : {at::kFloat, at::kBFloat16, at::kHalf}) {
      const at::Tensor into = at::full({3, 5}, 2, buffer);
      WeightGradInto(grad_out.to(compute), x.to(compute), /*accumulate=*/true, into);
      EXPECT_TRUE(into.to(at::kFloat).equal(expected + 2)) << compute << " " << buffer;
      WeightGradInto(grad_out.to(compute), x.to(compute), /*accumulate=*/false, into);
      EXPECT_TRUE(into.to(at::kFloat).equal(expected)) << compute << " " << buffer;
    }
  }
}

TEST(WeightGradInto, WritesOnlyItsViewOfBucket) {
  const at::Tensor bucket = at::full({4 + 15 + 4}, 7.0);
  const at::Tensor grad_out = SmallIntegers({6, 3}), x = SmallIntegers({6, 5});
  WeightGradInto(grad_out, x, /*accumulate=*/false, bucket.narrow(0, 4, 15).view({3, 5}));
  EXPECT_TRUE(bucket.narrow(0, 4, 15).view({3, 5}).equal(at::matmul(grad_out.t(), x)));
  EXPECT_TRUE(bucket.narrow(0, 0, 4).eq(7).all().item<bool>());
  EXPECT_TRUE(bucket.narrow(0, 19, 4).eq(7).all().item<bool>());
}

TEST(BiasGradInto, SumsInFp32) {
  const at::Tensor into = at::zeros({2});
  BiasGradInto(at::full({1000, 2}, 1.0, at::kBFloat16), /*accumulate=*/false, into);
  EXPECT_TRUE(into.equal(at::full({2}, 1000.0)));  // bf16 would stop at 256.
}

TEST(EmbeddingGradInto, AddsRowsByTokenInFp32) {
  const at::Tensor tokens = at::zeros({1000}, at::kLong);
  tokens[0] = 2;
  for (const at::ScalarType buffer : {at::kFloat, at::kBFloat16}) {
    const at::Tensor into = at::full({3, 4}, 1, buffer);
    EmbeddingGradInto(at::full({1000, 4}, 8.0, at::kBFloat16), tokens, /*accumulate=*/true, into);
    EXPECT_EQ(into[0][0].item<float>(), buffer == at::kFloat ? 7993 : 8000);  // Rounded once.
    EXPECT_EQ(into[1][1].item<float>(), 1);
    EXPECT_EQ(into[2][3].item<float>(), 9);
    EmbeddingGradInto(at::full({1000, 4}, 8.0, at::kBFloat16), tokens, /*accumulate=*/false, into);
    EXPECT_EQ(into[1][1].item<float>(), 0);
    EXPECT_EQ(into[2][3].item<float>(), 8);
  }
}

TEST(Gradients, SkipFrozenParameters) {
  const at::Tensor x = SmallIntegers({3, 2}), none;
  WeightGradInto(x, x, false, none);
  BiasGradInto(x, false, none);
  EmbeddingGradInto(x, at::zeros({3}, at::kLong), false, none);
  GradInto(x, true, none);
}

TEST(RmsNorm, EqualsLibTorch) {
  const at::Tensor x = at::randn({5, 7}), weight = at::randn({7}), grad = at::randn({5, 7});
  const Normed normed = RmsNormForward(x, weight, 1e-3);
  const at::Tensor weight_grad = at::full({7}, 1.0);
  const at::Tensor grad_x =
      RmsNormBackward(grad, x, normed.rstd, weight, /*residual=*/x, /*accumulate=*/true, weight_grad);

  const at::Tensor leaf = Leaf(x), weight_leaf = Leaf(weight);
  const at::Tensor expected = at::rms_norm(leaf, {7}, weight_leaf, 1e-3);
  expected.backward(grad.to(at::kDouble));
  ExpectNear(normed.y, expected);
  ExpectNear(grad_x, leaf.grad() + x);
  ExpectNear(weight_grad, weight_leaf.grad() + 1);
}

TEST(RmsNorm, BackwardRecomputesOutputInPlace) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const at::Tensor x = at::randn({5, 7}).to(type), weight = at::randn({7}).to(type);
    const at::Tensor grad = at::randn({5, 7}).to(type), none;
    const Normed normed = RmsNormForward(x, weight, 1e-3);
    const at::Tensor grad_x = RmsNormBackward(grad, x, normed.rstd, weight, x, false, none);
    const at::Tensor place = grad.clone();
    EXPECT_TRUE(RmsNormBackward(place, x, normed.rstd, weight, x, false, none, place).equal(grad_x));
    EXPECT_TRUE(place.equal(normed.y));
  }
}

TEST(Swiglu, EqualsFormulaAndAutograd) {
  const at::Tensor gate_up = at::randn({5, 14}), grad = at::randn({5, 7});
  const at::Tensor gate = gate_up.narrow(1, 0, 7), up = gate_up.narrow(1, 7, 7);
  const at::Tensor gate_leaf = Leaf(gate), up_leaf = Leaf(up);
  const at::Tensor expected = gate_leaf * at::sigmoid(gate_leaf) * up_leaf;
  expected.backward(grad.to(at::kDouble));
  ExpectNear(SwigluForward(gate_up), expected);
  const at::Tensor product = SwigluForward(gate_up);
  SwigluBackward(grad, gate_up);
  ExpectNear(gate, gate_leaf.grad());
  ExpectNear(up, up_leaf.grad());
  EXPECT_TRUE(grad.equal(product));
}

TEST(CrossEntropy, EqualsLibTorch) {
  at::Tensor logits = at::randn({6, 9}) * 5;
  at::Tensor targets = at::randint(9, {6}, at::kLong);
  targets[2] = kIgnoredTarget;
  const at::Tensor leaf = Leaf(logits);
  const at::Tensor expected = at::cross_entropy_loss(leaf, targets, {}, at::Reduction::Sum);
  (expected * 3).backward();
  const ChunkLoss chunk = CrossEntropyForward(logits, targets);
  EXPECT_NEAR(chunk.loss.item<double>(), expected.item<double>(), 1e-5 * expected.item<double>());
  CrossEntropyBackward(chunk.log_sum_exp, targets, at::full({}, 3.0), &logits);
  ExpectNear(logits, leaf.grad());
  EXPECT_TRUE(logits[2].eq(0).all().item<bool>());
}

TEST(LocalVocab, ExcludesOtherPartsAndIgnoredTargets) {
  const at::Tensor tokens = at::arange(12, at::kLong);
  for (int64_t rank = 0; rank < 3; ++rank) {
    const LocalVocab own = LocalVocabOf(tokens, 4, rank);
    EXPECT_TRUE(own.words.equal(tokens % 4));
    EXPECT_TRUE(own.elsewhere.logical_not().equal((tokens >= 4 * rank).logical_and(tokens < 4 * rank + 4)));
    EXPECT_TRUE(LocalVocabOf(at::full({1}, kIgnoredTarget, at::kLong), 4, rank).elsewhere.all().item<bool>());
  }
}

// Three parts of a nine-token vocabulary: each rank computes the loss of its own targets, and the gradient of
// its part of the vocabulary for all rows.
TEST(CrossEntropy, ShardedVocabularyEqualsFull) {
  const at::Tensor logits = at::randn({6, 9}) * 5;
  at::Tensor targets = at::randint(9, {6}, at::kLong);
  targets[2] = kIgnoredTarget;
  at::Tensor whole_grad = logits.clone();
  const ChunkLoss whole = CrossEntropyForward(logits, targets);
  CrossEntropyBackward(whole.log_sum_exp, targets, at::full({}, 3.0), &whole_grad);
  double loss = 0;
  for (int64_t rank = 0; rank < 3; ++rank) {
    at::Tensor part = logits.narrow(1, 3 * rank, 3).contiguous();
    const LocalVocab own = LocalVocabOf(targets, 3, rank);
    at::Tensor own_targets = own.words.masked_fill(own.elsewhere, kTargetElsewhere);
    own_targets.masked_fill_(targets == kIgnoredTarget, kIgnoredTarget);
    const ChunkLoss here = CrossEntropyForward(part, own_targets);
    const at::Tensor added = (whole.log_sum_exp - here.log_sum_exp).squeeze(-1);
    loss += (here.loss + added.masked_fill(own.elsewhere, 0).sum()).item<double>();
    CrossEntropyBackward(whole.log_sum_exp, own_targets, at::full({}, 3.0), &part);
    ExpectNear(part, whole_grad.narrow(1, 3 * rank, 3));
  }
  EXPECT_NEAR(loss, whole.loss.item<double>(), 1e-5 * whole.loss.item<double>());
}

// p - 1 at the target is -4.5e-5; bf16 arithmetic would give 0 or -0.0039.
TEST(CrossEntropy, KeepsGradientOfNearlyCertainTarget) {
  at::Tensor logits = at::zeros({1, 2}, at::kBFloat16);
  logits[0][0] = 10;
  const at::Tensor targets = at::zeros({1}, at::kLong);
  const ChunkLoss chunk = CrossEntropyForward(logits, targets);
  CrossEntropyBackward(chunk.log_sum_exp, targets, at::full({}, 1.0), &logits);
  const double rest = std::exp(-10) / (1 + std::exp(-10));
  EXPECT_NEAR(logits[0][0].item<double>(), -rest, 0.01 * rest);
  EXPECT_NEAR(logits[0][1].item<double>(), rest, 0.01 * rest);
}

TEST(CrossEntropy, IgnoredTargetsHaveZeroLoss) {
  at::Tensor logits = at::randn({3, 4});
  const at::Tensor targets = at::full({3}, kIgnoredTarget, at::kLong);
  const ChunkLoss chunk = CrossEntropyForward(logits, targets);
  EXPECT_EQ(chunk.loss.item<double>(), 0);
  CrossEntropyBackward(chunk.log_sum_exp, targets, at::full({}, 1.0), &logits);
  EXPECT_TRUE(logits.eq(0).all().item<bool>());
}

}  // namespace
}  // namespace fsdpd
