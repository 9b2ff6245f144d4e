#include "fsdp/model/native/native_heads.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/rms_norm.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <cmath>

#include "fsdp/model/testing/fixed_seed.h"

namespace fsdpd {
namespace {

void ExpectNear(const at::Tensor& actual, const at::Tensor& expected, double bound = 1e-5) {
  ASSERT_EQ(actual.sizes(), expected.sizes());
  EXPECT_LE((actual - expected).abs().max().item<double>(), bound);
}

at::Tensor Transposed(const at::Tensor& x, const Rotary& rotary) {
  at::Tensor q = x.clone(), k = x.clone();
  RotateForward(rotary, /*positions=*/{}, {q, k});
  EXPECT_TRUE(q.equal(k));
  return q;
}

LlamaConfig RotaryConfig(double factor) {
  LlamaConfig config;
  config.head_size = 8;
  config.rope_theta = 100;
  config.rope_scaling = {factor, 1, 4, 64};
  return config;
}

TEST(Rotate, RotatesPairsByPositionTimesFrequency) {
  const Rotary rotary = MakeRotary(RotaryConfig(1), 5, at::kCPU);
  const at::Tensor x = at::randn({1, 5, 1, 8}), y = Transposed(x, rotary);
  for (int64_t position = 0; position < 5; ++position) {
    for (int64_t i = 0; i < 4; ++i) {
      const double angle = position * std::pow(100, -2.0 * i / 8);
      const double a = x[0][position][0][i].item<double>(), b = x[0][position][0][i + 4].item<double>();
      EXPECT_NEAR(y[0][position][0][i].item<double>(), a * std::cos(angle) - b * std::sin(angle), 1e-6);
      EXPECT_NEAR(y[0][position][0][i + 4].item<double>(), b * std::cos(angle) + a * std::sin(angle), 1e-6);
    }
  }
}

// Wavelengths are 2 pi times 1, 3.16, 10, 31.6: over 64 positions 10.2, 3.2, 1.02 and 0.32 rotations.
TEST(Rotate, ScalesOnlyLongWavelengths) {
  const double position = 3;
  const at::Tensor angles = MakeRotary(RotaryConfig(8), 4, at::kCPU).sin[3].view({-1}).asin();
  const double turns = 64 / (2 * M_PI) * std::pow(10, -0.5), saved = (turns - 1) / 3;
  EXPECT_NEAR(std::sin(angles[0].item<double>()), std::sin(position), 1e-6);  // > 4 turns: unchanged.
  EXPECT_NEAR(angles[1].item<double>(), position * std::pow(10, -0.5) * (saved + (1 - saved) / 8), 1e-6);
  EXPECT_NEAR(angles[3].item<double>(), position * std::pow(10, -1.5) / 8, 1e-7);  // < 1 turn: scaled.
}

TEST(Rotate, BackwardIsInverse) {
  const Rotary rotary = MakeRotary(RotaryConfig(1), 5, at::kCPU);
  const at::Tensor x = at::randn({2, 5, 3, 8});
  const at::Tensor q = Transposed(x, rotary), k = Transposed(x, rotary);
  const at::Tensor row = at::zeros({2, 5, 6, 8}), q_into = row.narrow(2, 0, 3), k_into = row.narrow(2, 3, 3);
  RotateBackward(rotary, /*positions=*/{}, {q, k}, {q_into, k_into});
  ExpectNear(q_into, x.to(at::kDouble), 1e-6);
  RotateBackward(rotary, /*positions=*/{}, {q, k}, {q, k});
  EXPECT_TRUE(q.equal(q_into));
  EXPECT_TRUE(k.equal(k_into));
}

TEST(Rotate, ReadsPositionOfEachToken) {
  const Rotary rotary = MakeRotary(RotaryConfig(1), 5, at::kCPU);
  const at::Tensor x = at::randn({2, 5, 3, 8});
  const at::Tensor positions = at::tensor({0, 1, 2, 3, 4, 0, 1, 0, 1, 2}, at::kLong).view({2, 5});
  const at::Tensor in_rows = Transposed(x, rotary);
  at::Tensor q = x.clone(), k = x.clone();
  RotateForward(rotary, positions, {q, k});
  EXPECT_TRUE(q[0].equal(in_rows[0]) && q[1].narrow(0, 0, 2).equal(in_rows[1].narrow(0, 0, 2)));
  at::Tensor second = at::zeros_like(x);
  second.narrow(1, 0, 3).copy_(x.narrow(1, 2, 3));
  EXPECT_TRUE(q[1].narrow(0, 2, 3).equal(Transposed(second, rotary)[1].narrow(0, 0, 3)));
  RotateBackward(rotary, positions, {q, k}, {q, k});
  ExpectNear(q, x.to(at::kDouble), 1e-6);
}

TEST(Rotate, RoundsBf16Once) {
  const Rotary rotary = MakeRotary(RotaryConfig(1), 5, at::kCPU);
  const at::Tensor x = at::randn({2, 5, 3, 8}).to(at::kBFloat16);
  EXPECT_TRUE(Transposed(x, rotary).equal(Transposed(x.to(at::kFloat), rotary).to(at::kBFloat16)));
}

// Compared with LibTorch's norm and autograd, and the rotation formula: reads heads from wider packed rows,
// and writes back into them.
TEST(NormedHeads, EqualNormAndRotation) {
  const Rotary rotary = MakeRotary(RotaryConfig(1), 5, at::kCPU);
  at::Tensor row = at::randn({2, 5, 7, 8});
  const at::Tensor weight = at::randn({8}), grad = at::randn({2, 5, 4, 8});
  const auto q = [](const at::Tensor& of) { return of.narrow(2, 0, 4); };
  const auto k = [](const at::Tensor& of) { return of.narrow(2, 4, 2); };
  const HeadNorms norms = {weight, weight * 2, 1e-3};

  const at::Tensor leaf = row.to(at::kDouble).requires_grad_(),
                   weight_leaf = weight.to(at::kDouble).requires_grad_();
  const auto transposed = [&](const at::Tensor& x, const at::Tensor& by) {
    const at::Tensor normed = at::rms_norm(x, {8}, by, 1e-3);
    const at::Tensor a = normed.narrow(-1, 0, 4), b = normed.narrow(-1, 4, 4);
    return at::cat({a * rotary.cos - b * rotary.sin, b * rotary.cos + a * rotary.sin}, -1);
  };
  const at::Tensor want_q = transposed(q(leaf), weight_leaf), want_k = transposed(k(leaf), weight_leaf * 2);
  at::cat({want_q, want_k}, 2).backward(at::cat({grad, k(grad.repeat({1, 1, 2, 1}))}, 2).to(at::kDouble));

  const NormedHeads normed = NormAndRotate(rotary, /*positions=*/{}, {q(row), k(row)}, norms);
  ExpectNear(normed.transposed.q, want_q);
  ExpectNear(normed.transposed.k, want_k);
  const at::Tensor values = row.narrow(2, 6, 1).clone(), of_q = at::full({8}, 1.0), of_k = at::zeros({8});
  const at::Tensor grad_q = grad.clone(), grad_k = k(grad.repeat({1, 1, 2, 1})).contiguous();
  NormAndRotateBackward(rotary, /*positions=*/{}, {grad_q, grad_k}, normed, norms,
                        {of_q, of_k, /*accumulate=*/true}, {q(row), k(row)});
  ExpectNear(q(row), q(leaf.grad()));
  ExpectNear(k(row), k(leaf.grad()));
  EXPECT_TRUE(row.narrow(2, 6, 1).equal(values));
  ExpectNear(of_q - 1 + 2 * of_k, weight_leaf.grad(), 5e-5);
}

}  // namespace
}  // namespace fsdpd
