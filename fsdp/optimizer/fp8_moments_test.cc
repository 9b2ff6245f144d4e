#include "fsdp/optimizer/fp8_moments.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "fsdp/kernels/fp8_moment_format.h"
#include "fsdp/model/testing/fixed_seed.h"

namespace fsdpd {
namespace {

constexpr uint32_t kMostDither = (1u << kernels::kMomentDrops) - 1;

// The nonnegative values in order, as documented in the header: four per power of two from the smallest
// exponent on, and equally spaced below.
std::vector<double> NumbersOf(int moment) {
  const int least = moment == 0 ? -28 : -58, exponents = moment == 0 ? 31 : 63;
  std::vector<double> numbers = {0, 0.25, 0.5, 0.75};
  for (double& small : numbers) small = std::ldexp(small, least);
  for (int e = 0; e < exponents; ++e) {
    for (int quarter = 4; quarter < 8; ++quarter) numbers.push_back(std::ldexp(quarter / 4.0, least + e));
  }
  return numbers;
}

at::Tensor Bytes(int64_t count) { return at::zeros({count}, at::TensorOptions().dtype(at::kByte)); }

// Stores one of both moments, next to parameters that differ.
at::Tensor Stored(const at::Tensor& first, const at::Tensor& second, int64_t step, int moment) {
  const std::vector<at::Tensor> stored = {Bytes(first.numel()), Bytes(first.numel())};
  StoreMoments({first, second}, at::rand({first.numel()}), step, stored);
  return WidenMoments(stored[moment], moment);
}

at::Tensor AllCodes() { return at::arange(256, at::TensorOptions().dtype(at::kByte)); }

TEST(Fp8Moments, RepresentsDocumentedValues) {
  for (int moment = 0; moment < 2; ++moment) {
    const std::vector<double> numbers = NumbersOf(moment);
    const at::Tensor wide = WidenMoments(AllCodes(), moment);
    ASSERT_EQ(numbers.size(), moment == 0 ? 128u : 256u);
    for (size_t i = 0; i < numbers.size(); ++i) {
      EXPECT_EQ(wide[i].item<double>(), numbers[i]) << moment << " " << i;
      if (moment == 0) EXPECT_EQ(wide[i + 128].item<double>(), -numbers[i]) << i;
    }
    EXPECT_EQ(numbers[1], moment == 0 ? 0x1p-30 : 0x1p-60);
    EXPECT_EQ(numbers.back(), moment == 0 ? 7 : 28);
    EXPECT_GE(numbers.back(), moment == 0 ? kFp8MomentNorm : kFp8MomentNorm * kFp8MomentNorm);
  }
}

// So a skipped step keeps every bit, and a bf16 checkpoint restores what was stored.
TEST(Fp8Moments, StoredValuesSurviveDithering) {
  for (int moment = 0; moment < 2; ++moment) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16})
      EXPECT_TRUE(NearestMoments(WidenMoments(AllCodes(), moment).to(type), moment).equal(AllCodes()));
    const at::Tensor wide = WidenMoments(AllCodes(), moment);
    const at::Tensor bf16 = at::empty({256}, at::kBFloat16);
    WidenMomentsTo(AllCodes(), moment, static_cast<char*>(bf16.data_ptr()));
    EXPECT_TRUE(bf16.equal(wide.to(at::kBFloat16)));
    for (int code = 0; code < 256; ++code) {
      for (const uint32_t dither : {0u, kMostDither})
        EXPECT_EQ(kernels::NarrowMoment(wide[code].item<float>(), dither, kernels::MomentFormatOf(moment)),
                  code);
    }
  }
}

TEST(Fp8Moments, Bf16AndFp32RoundAlike) {
  const at::Tensor all = at::arange(-32768, 32768, at::TensorOptions().dtype(at::kShort)).view(at::kBFloat16);
  for (const int moment : {0, 1})
    EXPECT_TRUE(NearestMoments(all, moment).equal(NearestMoments(all.to(at::kFloat), moment)));
}

TEST(Fp8Moments, LargestMagnitudeOrdersNanLast) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    EXPECT_EQ(LargestMagnitude(at::tensor({0.5, -3.0, 2.0}).to(type)), 3);
    EXPECT_EQ(LargestMagnitude(at::tensor({1.0, -kInf}).to(type)), kInf);
    EXPECT_TRUE(std::isnan(LargestMagnitude(at::tensor({kInf, std::nan(""), 1.0}).to(type))));
    EXPECT_EQ(LargestMagnitude(at::zeros({0}, at::TensorOptions().dtype(type))), 0);
  }
}

TEST(Fp8Moments, DitheringIsUnbiased) {
  constexpr int kTimes = 4000;
  for (int moment = 0; moment < 2; ++moment) {
    const std::vector<double> numbers = NumbersOf(moment);
    const at::Tensor exponents = at::rand({60}) * (moment == 0 ? 34 : 66) - (moment == 0 ? 32 : 62);
    for (int i = 0; i < 60; ++i) {
      const float x = std::exp2(exponents[i].item<float>());
      const auto above = std::upper_bound(numbers.begin(), numbers.end(), static_cast<double>(x));
      const double low = *std::prev(above), high = *above;
      const at::Tensor all = at::full({kTimes}, x);
      const at::Tensor wide = Stored(all, all, 1000 + i, moment).to(at::kDouble);
      // A second moment does not become zero.
      const double least = moment == 1 && low == 0 ? high : low;
      EXPECT_TRUE(wide.eq(least).logical_or(wide.eq(high)).all().item<bool>()) << x;
      if (least == high) continue;
      const double part = (x - low) / (high - low);
      const double spread = std::sqrt(part * (1 - part) / kTimes) * (high - low);
      EXPECT_NEAR(wide.mean().item<double>(), x, 5 * spread + 1e-6 * x) << moment << " " << x;
    }
  }
}

TEST(Fp8Moments, ClampsToTheRange) {
  const float infinity = std::numeric_limits<float>::infinity();
  const at::Tensor beyond =
      at::tensor({8.0f, infinity, std::numeric_limits<float>::quiet_NaN(), 1e-38f, 0.0f});
  const at::Tensor first = WidenMoments(NearestMoments(beyond, 0), 0);
  const at::Tensor second = WidenMoments(NearestMoments(beyond * 4, 1), 1);
  EXPECT_TRUE(first.equal(at::tensor({7.0f, 7.0f, 7.0f, 0.0f, 0.0f})));
  EXPECT_TRUE(second.equal(at::tensor({28.0f, 28.0f, 28.0f, 0x1p-60f, 0.0f})));
  EXPECT_EQ(WidenMoments(NearestMoments(-beyond, 0), 0)[1].item<float>(), -7);
}

// A second moment changes by a thousandth per step, while its last bit is worth an eighth or more.
TEST(Fp8Moments, DitheringTracksSmallChanges) {
  constexpr int kElements = 1000, kSteps = 3000;
  constexpr double kBeta = 0.999;
  at::Tensor dithered = at::full({kElements}, 0x1p-13f), nearest = NearestMoments(dithered, 1);
  double exact = 0x1p-13;
  for (int step = 1; step <= kSteps; ++step) {
    exact = kBeta * exact + (1 - kBeta) * 1e-6;
    const auto next = [](const at::Tensor& of) { return of * kBeta + (1 - kBeta) * 1e-6; };
    dithered = Stored(at::rand({kElements}), next(dithered), step, 1);
    nearest = NearestMoments(next(WidenMoments(nearest, 1)), 1);
  }
  EXPECT_NEAR(dithered.mean().item<double>() / exact, 1, 0.1);
  EXPECT_TRUE(WidenMoments(nearest, 1).eq(0x1p-13).all().item<bool>());  // Without dithering it never moves.
}

TEST(Fp8Moments, DitheringIsDeterministic) {
  const at::Tensor numbers = at::rand({1000}), params = at::rand({1000});
  const auto stored = [&](int64_t begin, int64_t count, int64_t step, int moment) {
    const auto of = [&](const at::Tensor& all) { return all.narrow(0, begin, count); };
    const std::vector<at::Tensor> bytes = {Bytes(count), Bytes(count)};
    StoreMoments({of(numbers), of(numbers).square()}, of(params), step, bytes);
    return bytes[moment];
  };
  const at::Tensor whole = stored(0, 1000, 7, 0);
  EXPECT_TRUE(whole.narrow(0, 333, 667).equal(stored(333, 667, 7, 0)));
  EXPECT_FALSE(whole.equal(stored(0, 1000, 8, 0)));
  EXPECT_TRUE(stored(0, 1000, 7, 1).narrow(0, 1, 999).equal(stored(1, 999, 7, 1)));
}

}  // namespace
}  // namespace fsdpd
