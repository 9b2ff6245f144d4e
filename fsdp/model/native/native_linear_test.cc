#include "fsdp/model/native/native_linear.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "fsdp/model/testing/fixed_seed.h"

namespace fsdpd {
namespace {

constexpr int64_t kInputs = 5;
const std::vector<int64_t> kOutputs = {4, 3, 1};

// Matrices like parameters in a bucket, with `padding` elements after each.
Matrices InARow(int64_t padding) {
  const at::Tensor flat = at::randn({100});
  Matrices matrices;
  int64_t begin = 7;
  for (const int64_t outputs : kOutputs) {
    matrices.push_back(flat.narrow(0, begin, outputs * kInputs).view({outputs, kInputs}));
    begin += outputs * kInputs + padding;
  }
  return matrices;
}

void ExpectNear(const at::Tensor& got, const at::Tensor& want) {
  ASSERT_EQ(got.sizes(), want.sizes());
  EXPECT_LT((got - want).abs().max().item<double>(), 1e-5);
}

TEST(AsOne, RequiresAdjacentMatricesOfOneType) {
  const Matrices near = InARow(0), far = InARow(1);
  EXPECT_TRUE(AsOne(near).equal(at::cat(near)));
  EXPECT_EQ(AsOne(near).data_ptr(), near[0].data_ptr());  // A view.
  EXPECT_TRUE(AsOne({near[1]}).equal(near[1]));
  EXPECT_FALSE(AsOne(far).defined());
  EXPECT_FALSE(AsOne({near[1], near[0]}).defined());
  EXPECT_FALSE(AsOne({near[0], near[1].clone()}).defined());
  EXPECT_FALSE(AsOne({near[0], at::Tensor(), near[2]}).defined());  // A frozen matrix.
  EXPECT_FALSE(AsOne({at::Tensor(), near[1]}).defined());
}

TEST(NativeLinear, AdjacentAndSeparateMatricesGiveEqualResults) {
  const at::Tensor x = at::randn({6, kInputs}), grad = at::randn({6, 8});
  for (const int64_t padding : {0, 3}) {
    const Matrices matrices = InARow(padding);
    const at::Tensor whole = at::cat(matrices);
    ExpectNear(LinearForward(x, matrices), at::matmul(x, whole.t()));
    ExpectNear(LinearBackward(grad, matrices), at::matmul(grad, whole));
    const Matrices into = InARow(padding);
    const at::Tensor before = at::cat(into);
    LinearGradsInto(grad, x, kOutputs, /*accumulate=*/true, into);
    ExpectNear(at::cat(into), before + at::matmul(grad.t(), x));
    LinearGradsInto(grad, x, kOutputs, /*accumulate=*/false, into);
    ExpectNear(at::cat(into), at::matmul(grad.t(), x));
  }
}

TEST(NativeLinear, AppliesBiases) {
  const at::Tensor x = at::randn({6, kInputs}), grad = at::randn({6, 8});
  const Matrices matrices = InARow(0), biases = {at::randn({4}), at::Tensor(), at::randn({1})};
  at::Tensor want = at::matmul(x, at::cat(matrices).t());
  want.narrow(1, 0, 4).add_(biases[0]);
  want.narrow(1, 7, 1).add_(biases[2]);
  ExpectNear(LinearForward(x, matrices, biases), want);
  ExpectNear(LinearForward(x, matrices, Matrices(3)), at::matmul(x, at::cat(matrices).t()));
  const Matrices into = InARow(0), biases_into = {at::full({4}, 9.0), at::Tensor(), at::full({1}, 9.0)};
  LinearGradsInto(grad, x, kOutputs, /*accumulate=*/false, into, biases_into);
  ExpectNear(biases_into[0], grad.narrow(1, 0, 4).sum(0));
  ExpectNear(biases_into[2], grad.narrow(1, 7, 1).sum(0));
}

TEST(NativeLinear, SkipsFrozenMatrix) {
  const at::Tensor x = at::randn({6, kInputs}), grad = at::randn({6, 8});
  Matrices into = InARow(0);
  const at::Tensor frozen = into[1].clone(), place = into[1];
  into[1] = at::Tensor();
  LinearGradsInto(grad, x, kOutputs, /*accumulate=*/false, into);
  EXPECT_TRUE(place.equal(frozen));
  const at::Tensor all = at::matmul(grad.t(), x);
  ExpectNear(into[0], all.narrow(0, 0, 4));
  ExpectNear(into[2], all.narrow(0, 7, 1));
}

// ---- FP8, compared with double-precision products of operands that are quantized here along the summed
// dimension.

at::Tensor RoundedRows(const at::Tensor& x) {
  const at::Tensor wide = x.to(at::kFloat), largest = std::get<0>(wide.abs().max(1, /*keepdim=*/true));
  const at::Tensor fp8 = (wide * (at::full_like(largest, 448.0f) / largest)).to(at::kFloat8_e4m3fn);
  return fp8.to(at::kDouble) * (largest / 448.0f).to(at::kDouble);
}

// With power-of-two scales.
at::Tensor RoundedWeights(const at::Tensor& x) {
  const at::Tensor wide = x.to(at::kDouble), largest = std::get<0>(wide.abs().max(1, /*keepdim=*/true));
  const at::Tensor scales = (largest / 448).log2().ceil().exp2();
  return (wide / scales).to(at::kFloat8_e4m3fn).to(at::kDouble) * scales;
}

at::Tensor ForwardOf(const at::Tensor& x, const at::Tensor& matrix) {
  return at::matmul(RoundedRows(x), RoundedWeights(matrix).t());
}

// The gradient is quantized after multiplication with the row scales.
at::Tensor BackwardOf(const at::Tensor& grad, const at::Tensor& matrix) {
  const at::Tensor largest = std::get<0>(matrix.to(at::kDouble).abs().max(1));
  const at::Tensor scales = (largest / 448).log2().ceil().exp2();
  return at::matmul(RoundedRows(grad * scales.to(at::kBFloat16)),
                    RoundedWeights(matrix) / scales.unsqueeze(1));
}

at::Tensor RoundedProduct(const at::Tensor& a, const at::Tensor& b) {
  return at::matmul(RoundedRows(a), RoundedRows(b).t());
}

void ExpectRoundedTo(const at::Tensor& got, const at::Tensor& want) {
  const double off = got.scalar_type() == at::kBFloat16 ? 1.0 / 256 : 1e-6;
  EXPECT_LT((got.to(at::kDouble) - want).norm().item<double>(), off * want.norm().item<double>());
}

// The same, adjacent in memory.
std::vector<Fp8> NeighborsOf(const std::vector<Fp8>& matrices) {
  const Fp8 one = Weights(matrices).fp8;
  std::vector<Fp8> found;
  int64_t begin = 0;
  for (const Fp8& matrix : matrices) {
    found.push_back(one.Part(begin, matrix.values.size(0)));
    begin += matrix.values.size(0);
  }
  return found;
}

TEST(NativeLinear, Fp8OperandsAreQuantizedAlongSummedDimension) {
  const std::vector<int64_t> outputs = {32, 16, 16};
  const at::Tensor x = (at::randn({21, 48}) * 3).to(at::kBFloat16),
                   grad = at::randn({21, 64}).to(at::kBFloat16);
  const at::Tensor flat = at::randn({4000}).to(at::kBFloat16),
                   residual = at::randn({21, 32}).to(at::kBFloat16);
  for (const int64_t padding : {0, 5}) {
    const auto in_a_row = [&](const at::Tensor& of) {
      Matrices found;
      int64_t begin = 3;
      for (const int64_t rows : outputs) {
        found.push_back(of.narrow(0, begin, rows * 48).view({rows, 48}));
        begin += rows * 48 + padding;
      }
      return found;
    };
    const Matrices matrices = in_a_row(flat);
    std::vector<Fp8> fp8;
    for (const at::Tensor& matrix : matrices) fp8.push_back(Fp8Weights(matrix));
    if (padding == 0) fp8 = NeighborsOf(fp8);
    const Weights weights = Transposed(fp8);
    const at::Tensor whole = at::cat(matrices), wide_residual = residual.to(at::kDouble);
    at::Tensor y = at::empty({21, 64}, at::kBFloat16), dx = at::empty({21, 48}, at::kBFloat16);
    EXPECT_EQ(weights.fp8.values.data_ptr() == fp8[0].values.data_ptr(), padding == 0);
    LinearForwardInto(x, weights, {}, y);
    ExpectRoundedTo(y, ForwardOf(x, whole));
    ExpectRoundedTo(AddLinear(residual, x, std::vector<Fp8>{fp8[0]}),
                    wide_residual + ForwardOf(x, matrices[0]));
    LinearBackwardInto(grad, weights, dx);
    ExpectRoundedTo(dx, BackwardOf(grad, whole));
    const at::Tensor into = at::zeros({4000});
    for (const int times : {1, 2}) {
      LinearGradsInto(grad, x, outputs, /*accumulate=*/times > 1, in_a_row(into), {}, Operands::kFp8);
      ExpectRoundedTo(at::cat(in_a_row(into)), times * RoundedProduct(grad.t(), x.t()));
    }
  }
}

TEST(NativeLinear, Fp8AddsBiasesAndSkipsFrozenMatrices) {
  const at::Tensor x = at::randn({21, 48}).to(at::kBFloat16), grad = at::randn({21, 64}).to(at::kBFloat16);
  const Matrices matrices = {at::randn({32, 48}).to(at::kBFloat16), at::randn({32, 48}).to(at::kBFloat16)};
  const Matrices biases = {at::randn({32}).to(at::kBFloat16) * 9, at::Tensor()};
  at::Tensor y = at::empty({21, 64}, at::kBFloat16);
  LinearForwardInto(x, std::vector<Fp8>{Fp8Weights(matrices[0]), Fp8Weights(matrices[1])}, biases, y);
  at::Tensor want = ForwardOf(x, at::cat(matrices));
  want.narrow(1, 0, 32).add_(biases[0].to(at::kDouble));
  ExpectRoundedTo(y, want);
  Matrices into = {at::Tensor(), at::zeros({32, 48})};
  LinearGradsInto(grad, x, {32, 32}, /*accumulate=*/false, into, {at::zeros({32}), at::Tensor()},
                  Operands::kFp8);
  ExpectRoundedTo(into[1], RoundedProduct(grad.narrow(1, 32, 32).t(), x.t()));
}

// Adapters of two of the three matrices, with `padding` elements between their A.
LoraAdapters TwoAdapters(int64_t padding) {
  const at::Tensor flat = at::randn({50});
  const auto a = [&](int64_t begin) { return flat.narrow(0, begin, 2 * kInputs).view({2, kInputs}); };
  LoraAdapters adapters;
  adapters.a = {a(3), {}, a(3 + 2 * kInputs + padding)};
  adapters.b = {at::randn({kOutputs[0], 2}), {}, at::randn({kOutputs[2], 2})};
  adapters.scale = 0.5;
  return adapters;
}

Matrices Merged(Matrices matrices, const LoraAdapters& adapters) {
  for (const size_t i : {0, 2}) matrices[i] = matrices[i] + 0.5 * at::matmul(adapters.b[i], adapters.a[i]);
  return matrices;
}

TEST(NativeLinear, AdaptersAddToTheirMatrices) {
  const at::Tensor x = at::randn({6, kInputs});
  const Matrices biases = {at::Tensor(), at::randn({kOutputs[1]}), at::randn({kOutputs[2]})};
  for (const int64_t padding : {0, 3}) {
    const Weights weights(InARow(padding), TwoAdapters(padding));
    const Matrices merged = Merged(weights.plain, weights.adapters);
    at::Tensor low;
    ExpectNear(LinearForward(x, weights, {}, &low), LinearForward(x, merged));
    ExpectNear(LinearForward(x, weights, biases, &low), LinearForward(x, merged, biases));
    const at::Tensor residual = at::randn({6, kOutputs[0]});
    const Weights first({weights.plain[0]}, {{weights.adapters.a[0]}, {weights.adapters.b[0]}, 0.5});
    ExpectNear(AddLinear(residual, x, first, first.EmptyLow(x)), AddLinear(residual, x, Matrices{merged[0]}));
  }
}

TEST(NativeLinear, NarrowOnlyLeavesOutTheWideProducts) {
  const at::Tensor x = at::randn({6, kInputs}), grad = at::randn({6, 8});
  Weights weights(InARow(0), TwoAdapters(0));
  AdapterBackward all = {{}, weights.EmptyLow(x), weights.adapters.b}, narrow = all;
  LinearForward(x, weights, {}, &all.low);
  LinearBackward(grad, weights, all);
  narrow.grad_low = weights.EmptyLow(x);
  weights.adapters.narrow_only = true;
  ExpectNear(LinearForward(x, weights, {}, &narrow.low), LinearForward(x, weights.plain));
  ExpectNear(LinearBackward(grad, weights, narrow), LinearBackward(grad, weights.plain));
  ExpectNear(narrow.low, all.low);
}

TEST(NativeLinear, AdaptersHaveTheGradientsOfMergedMatrices) {
  const at::Tensor x = at::randn({6, kInputs}), grad = at::randn({6, 8});
  for (const int64_t padding : {0, 3}) {
    const Weights weights(InARow(padding), TwoAdapters(padding));
    const LoraAdapters& adapters = weights.adapters;
    const LoraAdapters a_into = TwoAdapters(padding);
    const Matrices b_into = {at::full_like(adapters.b[0], 7.0), {}, at::full_like(adapters.b[2], 7.0)};
    AdapterBackward backward = {{}, weights.EmptyLow(x), b_into};
    LinearForward(x, weights, {}, &backward.low);
    for (const bool accumulate : {false, true}) {
      backward.accumulate = accumulate;
      ExpectNear(LinearBackward(grad, weights, backward),
                 LinearBackward(grad, Merged(weights.plain, adapters)));
      AdapterInputGradsInto(backward.grad_low, x, accumulate, a_into.a);
    }
    int64_t begin = 0;
    for (size_t i = 0; i < kOutputs.size(); begin += kOutputs[i++]) {
      if (!adapters.a[i].defined()) continue;
      const at::Tensor of_merged = at::matmul(grad.narrow(1, begin, kOutputs[i]).t(), x);
      ExpectNear(a_into.a[i], at::matmul(adapters.b[i].t(), of_merged));
      ExpectNear(b_into[i], at::matmul(of_merged, adapters.a[i].t()));
    }
  }
}

}  // namespace
}  // namespace fsdpd
