// The CPU path is composed of native_ops and native_fp8, so this tests the composition: shapes, padding, and
// which tensor of SwiGLU is which. For CUDA see native_fp8_cuda_test.
#include "fsdp/model/native/native_fp8_ops.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/sigmoid.h>
#include <gtest/gtest.h>

#include "fsdp/model/testing/fixed_seed.h"

namespace fsdpd {
namespace {

at::Tensor Random(int64_t rows, int64_t width) { return at::randn({rows, width}).to(at::kBFloat16); }

at::Tensor Exact(const Fp8& of) { return of.values.to(at::kFloat) * of.scales.unsqueeze(1); }

// e4m3 has three mantissa bits: a relative error of at most 1/16, except near zero.
void ExpectNear(const Fp8& got, const at::Tensor& want) {
  ASSERT_EQ(Exact(got).sizes(), want.sizes());
  const at::Tensor off = (Exact(got) - want).norm(), size = want.norm();
  EXPECT_LT(off.item<float>(), 0.04f * size.item<float>());
}

TEST(NativeFp8Ops, NormIsQuantized) {
  const at::Tensor x = Random(21, 48) * 7, weight = Random(1, 48)[0];
  const at::Tensor rstd = (x.to(at::kFloat).square().mean(1, true) + 1e-5).rsqrt();
  const Fp8Normed got = Fp8RmsNormForward(x, weight, 1e-5);
  EXPECT_TRUE(got.rstd.allclose(rstd));
  ExpectNear(got.y, x.to(at::kFloat) * rstd * weight.to(at::kFloat));
}

TEST(NativeFp8Ops, SwigluGradientsAreQuantizedAlongSummedDimension) {
  constexpr int64_t kRows = 21, kWidth = 32;
  const at::Tensor gate_up = Random(kRows, 2 * kWidth), grad = Random(kRows, kWidth);
  const at::Tensor gate = gate_up.narrow(1, 0, kWidth).to(at::kFloat), sigmoid = at::sigmoid(gate);
  const at::Tensor up = gate_up.narrow(1, kWidth, kWidth).to(at::kFloat), wide = grad.to(at::kFloat);
  const at::Tensor product = gate * sigmoid * up;
  ExpectNear(Fp8SwigluForward(gate_up), product);
  const at::Tensor scales = Fp8Weights(Random(2 * kWidth, 16)).scales;
  const Fp8SwigluGrads got = Fp8SwigluBackward(grad, gate_up, scales);
  const at::Tensor grads =
      at::cat({wide * up * sigmoid * (gate * (1 - sigmoid) + 1), wide * gate * sigmoid}, 1);
  ExpectNear(got.gate_up, grads * scales);
  const auto columns = [&](const Fp8& of) { return Fp8{of.values.narrow(1, 0, kRows), of.scales}; };
  ASSERT_EQ(got.gate_up_columns.values.size(1), PaddedRows(kRows));
  ExpectNear(columns(got.gate_up_columns), grads.t());
  ExpectNear(columns(got.product_columns), product.t());
}

}  // namespace
}  // namespace fsdpd
