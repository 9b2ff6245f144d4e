#include "fsdp/model/native/native_fp8_experts.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <limits>

#include "fsdp/model/native/native_rows.h"
#include "fsdp/model/testing/fixed_seed.h"

namespace fsdpd {
namespace {

constexpr int64_t kExperts = 5, kInputs = 48, kOutputs = 32, kRows = 41;

// One expert without rows, and one with a single row, whose column scales are its own elements.
const std::vector<int64_t> kCounts = {3, 0, 1, 20, 17};

at::Tensor Random(at::IntArrayRef shape) { return at::randn(shape).to(at::kBFloat16); }

Fp8 RandomMatrices() {
  std::vector<at::Tensor> values, scales;
  for (int64_t e = 0; e < kExperts; ++e) {
    const Fp8 weights = Fp8Weights(Random({kOutputs, kInputs}) * (0.02 * static_cast<double>(e + 1)));
    values.push_back(weights.values.view(at::kByte));
    scales.push_back(weights.scales);
  }
  return {at::stack(values).view(at::kFloat8_e4m3fn), at::stack(scales)};
}

at::Tensor Exact(const Fp8& of) {
  return of.values.to(at::kFloat).to(at::kDouble) * of.scales.to(at::kDouble).unsqueeze(-1);
}
// x after quantization by row, or by column.
at::Tensor Rounded(const at::Tensor& x) { return Exact(Fp8Rows(x)); }
at::Tensor RoundedColumns(const at::Tensor& x) { return Exact(Fp8Columns(x)).narrow(1, 0, x.size(0)).t(); }

void ExpectNear(const at::Tensor& got, const at::Tensor& want) {
  ASSERT_EQ(got.sizes(), want.sizes());
  EXPECT_LE((got.to(at::kDouble) - want).abs().max().item<double>(), want.abs().max().item<double>() / 200);
}

// Reference: each expert's rows separately, in double precision, from the quantized values.
class NativeFp8Experts : public ::testing::Test {
 protected:
  template <typename Check>
  void OfEach(Check check) const {
    int64_t begin = 0;
    for (size_t e = 0; e < kCounts.size(); begin += kCounts[e++]) {
      const auto own = [&](const at::Tensor& of) { return of.narrow(0, begin, kCounts[e]); };
      check(static_cast<int64_t>(e), own);
    }
  }

  const at::Tensor rows_ = Random({kRows, kInputs}), grad_ = Random({kRows, 2 * kOutputs});
  const at::Tensor ends_ = at::tensor(kCounts).cumsum(0).to(at::kInt);
  const Fp8 a_ = RandomMatrices(), b_ = RandomMatrices();
};

TEST_F(NativeFp8Experts, RowsMultiplyTheirExpertsMatrices) {
  const at::Tensor out = Fp8ExpertsForward(Fp8Rows(rows_), ends_, {a_, b_});
  OfEach([&](int64_t e, const auto& own) {
    const at::Tensor both = at::cat({Exact(a_)[e], Exact(b_)[e]});
    if (own(rows_).size(0) > 0) ExpectNear(own(out), at::matmul(Rounded(own(rows_)), both.t()));
  });
}

// The scales of matrices are folded into the quantized operand.
TEST_F(NativeFp8Experts, InputGradientsUseQuantizedWeights) {
  const at::Tensor back = Fp8ExpertsBackward(grad_, ends_, {a_, b_});
  OfEach([&](int64_t e, const auto& own) {
    if (own(grad_).size(0) == 0) return;
    const at::Tensor scales = at::cat({a_.scales[e], b_.scales[e]});
    const at::Tensor numbers =
        at::cat({a_.values.to(at::kFloat)[e], b_.values.to(at::kFloat)[e]}).to(at::kDouble);
    const at::Tensor scaled = (own(grad_).to(at::kFloat) * scales).to(at::kBFloat16);
    ExpectNear(own(back), at::matmul(Rounded(scaled), numbers));
  });
}

TEST_F(NativeFp8Experts, MatrixGradientsUseColumnScales) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const double nan = std::numeric_limits<double>::quiet_NaN();
    const at::Tensor first = at::full({kExperts, kOutputs, kInputs}, nan, type),
                     twice = at::zeros(first.sizes(), type);
    Fp8ExpertsGradsInto(grad_, rows_, ends_, kOutputs, /*accumulate=*/false, {first, at::Tensor()});
    for (int i = 0; i < 2; ++i)
      Fp8ExpertsGradsInto(grad_, rows_, ends_, kOutputs, /*accumulate=*/true, {at::Tensor(), twice});
    OfEach([&](int64_t e, const auto& own) {
      const auto want = [&](int64_t begin) {
        if (own(rows_).size(0) == 0) return at::zeros({kOutputs, kInputs}, at::kDouble);
        return at::matmul(RoundedColumns(own(grad_).narrow(1, begin, kOutputs)).t(),
                          RoundedColumns(own(rows_)));
      };
      ExpectNear(first[e], want(0));
      ExpectNear(twice[e], 2 * want(kOutputs));
    });
  }
}

TEST_F(NativeFp8Experts, RowsByIndexEqualCopiedRows) {
  const at::Tensor tokens = Random({9, kInputs}), grads = Random({9, kOutputs});
  const at::Tensor places = at::randint(-4, 9 * 3, {kRows}, at::kInt).clamp_min(-1);
  const auto copied = [&](const at::Tensor& of) { return GatherRows(of, places, 3); };
  EXPECT_TRUE(Fp8ExpertsBackward({grads, places, 3}, ends_, {a_})
                  .equal(Fp8ExpertsBackward(copied(grads), ends_, {a_})));
  const at::Tensor got = at::zeros({kExperts, kOutputs, kInputs}), want = at::zeros_like(got);
  Fp8ExpertsGradsInto({grads, places, 3}, {tokens, places, 3}, ends_, kOutputs, /*accumulate=*/true, {got});
  Fp8ExpertsGradsInto(copied(grads), copied(tokens), ends_, kOutputs, /*accumulate=*/true, {want});
  EXPECT_TRUE(got.equal(want));
}

}  // namespace
}  // namespace fsdpd
