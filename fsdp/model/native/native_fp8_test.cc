#include "fsdp/model/native/native_fp8.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "fsdp/model/testing/fixed_seed.h"

namespace fsdpd {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

// Every nonnegative e4m3 number by its bits, from the format's definition rather than LibTorch's casts.
std::vector<double> Numbers() {
  std::vector<double> numbers;
  for (int bits = 0; bits < 0x7f; ++bits) {
    const int exponent = bits >> 3, mantissa = bits & 7;
    numbers.push_back(exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10));
  }
  return numbers;
}

// The nearest of them; ties go to the one whose last bit is 0.
double Nearest(double x) {
  static const std::vector<double> numbers = Numbers();
  size_t best = 0;
  for (size_t i = 1; i < numbers.size(); ++i) {
    const double now = std::abs(std::abs(x) - numbers[i]), before = std::abs(std::abs(x) - numbers[best]);
    if (now < before || (now == before && i % 2 == 0)) best = i;
  }
  return std::copysign(numbers[best], x);
}

double At(const at::Tensor& x, int64_t row, int64_t column) {
  return x.to(at::kFloat)[row][column].item<double>();
}

at::Tensor Random(int64_t rows, int64_t width) { return at::randn({rows, width}).to(at::kBFloat16); }

void ExpectRounded(const at::Tensor& x, const Fp8& fp8) {
  for (int64_t row = 0; row < x.size(0); ++row) {
    const float largest = x[row].to(at::kFloat).abs().max().item<float>();
    const float scale = fp8.scales[row].item<float>(), factor = 448.0f / largest;
    EXPECT_EQ(scale, largest / 448.0f);
    for (int64_t column = 0; column < x.size(1); ++column) {
      const auto number = static_cast<float>(At(x, row, column));
      EXPECT_EQ(At(fp8.values, row, column), Nearest(number * factor)) << row << " " << column;
    }
  }
}

TEST(NativeFp8, QuantizesRowsByTheirMaximum) {
  at::Tensor x = Random(5, 48);
  x[1].mul_(1e4);
  x[2].mul_(1e-4);
  x[3][7] = 3e4;  // Makes the others lose bits, or flushes them.
  ExpectRounded(x, Fp8Rows(x));
}

TEST(NativeFp8, ColumnsEqualRowsOfPaddedTranspose) {
  const at::Tensor x = Random(21, 32);
  const Fp8 columns = Fp8Columns(x);
  EXPECT_EQ(columns.values.sizes(), at::IntArrayRef({32, 32}));
  ExpectRounded(x.t(), {columns.values.narrow(1, 0, 21), columns.scales});
  EXPECT_EQ(columns.values.narrow(1, 21, 11).to(at::kFloat).abs().max().item<float>(), 0);
}

TEST(NativeFp8, ReadsStridedRows) {
  const at::Tensor x = Random(6, 64), part = x.narrow(1, 16, 32);
  EXPECT_TRUE(Fp8Rows(part).values.to(at::kFloat).equal(Fp8Rows(part.contiguous()).values.to(at::kFloat)));
  EXPECT_TRUE(
      Fp8Columns(part).values.to(at::kFloat).equal(Fp8Columns(part.contiguous()).values.to(at::kFloat)));
}

// The smallest power of two with which no element exceeds 448.
TEST(NativeFp8, WeightsHaveSmallestPowerOfTwoScale) {
  at::Tensor x = Random(40, 48);
  for (int row = 0; row < 40; ++row) x[row].mul_(std::ldexp(1.0, row % 30 - 15) * (1 + row / 40.0));
  x[7].clamp_(-0.5, 0.5)[3] = 448;  // Exactly at the boundary, and just past it.
  x[8].clamp_(-0.5, 0.5)[3] = 450;
  for (const at::Tensor& from : {x, x.to(at::kFloat)}) {
    const Fp8 weights = Fp8Weights(from);
    for (int row = 0; row < 40; ++row) {
      const auto scale = weights.scales[row].item<double>();
      int exponent = 0;
      EXPECT_EQ(std::frexp(scale, &exponent), 0.5);
      const auto largest = x[row].to(at::kDouble).abs().max().item<double>();
      EXPECT_LE(largest / scale, 448);
      EXPECT_GT(largest / (scale / 2), 448);
      for (int column = 0; column < 48; ++column)
        EXPECT_EQ(At(weights.values, row, column), Nearest(At(x, row, column) / scale))
            << row << " " << column;
    }
  }
  EXPECT_EQ(Fp8Weights(x).scales[7].item<float>(), 1);
  EXPECT_EQ(Fp8Weights(x).scales[8].item<float>(), 2);
}

TEST(NativeFp8, MultiplyingByWeightScalesIsExact) {
  const at::Tensor x = Random(21, 48), scales = Fp8Weights(Random(48, 16) * 3e-3).scales;
  const Fp8 rows = Fp8Rows(x, scales), of_product = Fp8Rows(x * scales.to(at::kBFloat16));
  EXPECT_TRUE(rows.scales.equal(of_product.scales));
  EXPECT_TRUE(rows.values.to(at::kFloat).equal(of_product.values.to(at::kFloat)));
}

TEST(NativeFp8, TransposeKeepsWeightValues) {
  const Fp8 weights = Fp8Weights(Random(48, 32)), transposed = Fp8Transposed(weights);
  EXPECT_TRUE(transposed.values.is_contiguous());
  EXPECT_TRUE(transposed.values.to(at::kFloat).equal(weights.values.to(at::kFloat).t()));
  EXPECT_TRUE(transposed.scales.equal(at::ones({32})));
}

TEST(NativeFp8, ZeroAndTinyRowsStayFinite) {
  at::Tensor x = at::zeros({3, 16}, at::kBFloat16);
  x[1].fill_(std::ldexp(1.0, -126));
  x[2].fill_(-0.0);
  for (const Fp8& fp8 : {Fp8Rows(x), Fp8Columns(x), Fp8Weights(x)}) {
    EXPECT_TRUE(fp8.scales.isfinite().all().item<bool>());
    EXPECT_GT(fp8.scales.min().item<float>(), 0);
    EXPECT_TRUE(fp8.values.to(at::kFloat).isfinite().all().item<bool>());
  }
}

TEST(NativeFp8, NonFiniteValuesPropagate) {
  for (const float bad : {kInf, -kInf, std::numeric_limits<float>::quiet_NaN()}) {
    at::Tensor x = Random(4, 16), w = Random(16, 16);
    x[2][3] = bad;
    at::Tensor product = at::empty({4, 16}, at::kBFloat16);
    for (const Fp8& rows : {Fp8Rows(x), Fp8Weights(x)}) {
      Fp8ProductInto(rows, Fp8Rows(w), {}, product);
      const at::Tensor finite = product.to(at::kFloat).isfinite().all(1);
      EXPECT_TRUE(finite[0].item<bool>());
      EXPECT_FALSE(product[2].to(at::kFloat).isfinite().any().item<bool>()) << bad;
    }
  }
}

// Reference: sums in double precision of the quantized values.
TEST(NativeFp8, ProductUsesQuantizedValues) {
  const at::Tensor x = Random(21, 32), w = Random(48, 32) * 7;
  const Fp8 a = Fp8Rows(x), b = Fp8Rows(w);
  const auto wide = [](const Fp8& of) {
    return of.values.to(at::kFloat).to(at::kDouble) * of.scales.to(at::kDouble).unsqueeze(1);
  };
  const at::Tensor want = wide(a).matmul(wide(b).t());
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const at::Tensor addend = at::randn({21, 48}).to(type);
    at::Tensor sum = addend.clone();
    Fp8ProductInto(a, b, sum, sum);
    const double off = type == at::kFloat ? 1e-6 : 1.0 / 256;
    EXPECT_LT((sum.to(at::kDouble) - (want + addend.to(at::kDouble))).abs().max().item<double>(),
              off * want.abs().max().item<double>());
    at::Tensor alone = at::full({21, 48}, 9.0, at::TensorOptions(type));
    Fp8ProductInto(a, b, {}, alone);
    EXPECT_LT((alone.to(at::kDouble) - want).abs().max().item<double>(),
              off * want.abs().max().item<double>());
  }
}

TEST(NativeFp8, PartOfRowsMultipliesSeparately) {
  const Fp8 a = Fp8Rows(Random(21, 32)), b = Fp8Rows(Random(48, 32));
  at::Tensor all = at::empty({21, 48}, at::kFloat), part = at::empty({5, 48}, at::kFloat);
  Fp8ProductInto(a, b, {}, all);
  Fp8ProductInto(a.Part(7, 5), b, {}, part);
  EXPECT_TRUE(part.allclose(all.narrow(0, 7, 5)));
}

}  // namespace
}  // namespace fsdpd
