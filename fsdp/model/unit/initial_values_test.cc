#include "fsdp/model/unit/initial_values.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/PhiloxRNGEngine.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>
#include <xxhash.h>

#include <cmath>

namespace fsdpd {
namespace {

constexpr int64_t kMany = 1 << 20;

at::Tensor Draw(int64_t begin, int64_t elements, uint64_t seed = 1) {
  return DrawInitialValue(NumbersOf("layer.0", "attention.wq", {1, 0}, seed), begin, elements);
}

TEST(InitialValues, RangeEqualsPartOfWhole) {
  const at::Tensor whole = Draw(0, 300000);  // More than one thread's share and one block.
  for (const int64_t begin : {0, 1, 2, 3, 4, 5, 1023, 1024, 65537, 299999}) {
    for (const int64_t elements : {0, 1, 2, 3, 5, 1021, 1024, 150001}) {
      if (begin + elements > 300000) continue;
      EXPECT_TRUE(Draw(begin, elements).equal(whole.narrow(0, begin, elements))) << begin << " " << elements;
    }
  }
  EXPECT_TRUE(at::cat({Draw(0, 7), Draw(7, 10), Draw(17, 3)}).equal(whole.narrow(0, 0, 20)));
}

// Jobs that start with one release and grow or are compared with another must get the same initial values.
TEST(InitialValues, UnchangedSinceFirstRelease) {
  const at::Tensor values = DrawInitialValue(NumbersOf("layer.0", "attention.wq", {}, 1), 5, 1000003);
  EXPECT_EQ(XXH64(values.const_data_ptr(), values.nbytes(), 0), 0xd013925291e8a963u);
}

TEST(InitialValues, DependOnSeedAndBothNames) {
  const at::Tensor values = Draw(0, 8);
  EXPECT_FALSE(values.equal(Draw(0, 8, /*seed=*/2)));
  EXPECT_FALSE(values.equal(DrawInitialValue(NumbersOf("layer.1", "attention.wq", {1, 0}, 1), 0, 8)));
  EXPECT_FALSE(values.equal(DrawInitialValue(NumbersOf("layer.0", "attention.wk", {1, 0}, 1), 0, 8)));
}

// Reference: the formula with libm's functions in double.
TEST(InitialValues, EqualBoxMullerOfPhilox) {
  constexpr double kTurn = 6.283185307179586;
  at::philox_engine engine(XXH64("layer.0/attention.wq", 20, 1), 0, 0);
  const at::Tensor values = Draw(0, 4096);
  for (int64_t i = 0; i < 4096; i += 2) {
    const double u = ((engine() >> 8) + 0.5) * 0x1p-24;
    const double angle = kTurn * (((engine() >> 8) + 0.5) * 0x1p-24 - 0.125);
    const double radius = std::sqrt(-2 * std::log(u));
    EXPECT_NEAR(values[i].item<double>(), radius * std::cos(angle), 2e-6);
    EXPECT_NEAR(values[i + 1].item<double>(), radius * std::sin(angle), 2e-6);
  }
}

TEST(InitialValues, AreNormallyDistributed) {
  const at::Tensor values = Draw(0, kMany).to(at::kDouble);
  const double n = kMany;
  EXPECT_NEAR(values.mean().item<double>(), 0, 4 / std::sqrt(n));
  EXPECT_NEAR(values.square().mean().item<double>(), 1, 4 * std::sqrt(2 / n));
  EXPECT_NEAR(values.pow(4).mean().item<double>(), 3, 4 * std::sqrt(96 / n));
  EXPECT_NEAR((values.abs() < 0.6744898).to(at::kDouble).mean().item<double>(), 0.5, 4 * 0.5 / std::sqrt(n));
  EXPECT_GT(values.max().item<double>(), 4);
  EXPECT_TRUE(values.isfinite().all().item<bool>());
  const at::Tensor next = values.narrow(0, 1, kMany - 1) * values.narrow(0, 0, kMany - 1);
  EXPECT_NEAR(next.mean().item<double>(), 0, 4 / std::sqrt(n));
}

TEST(InitialValues, ApplyDeviationAndMean) {
  const at::Tensor scaled = DrawInitialValue(NumbersOf("layer.0", "attention.wq", {0.5, 2}, 1), 3, 8);
  EXPECT_TRUE(scaled.equal(Draw(3, 8) * 0.5 + 2));
  EXPECT_TRUE(DrawInitialValue(NumbersOf("u", "p", {0, 3}, 1), 5, 2).equal(at::full({2}, 3.0)));
}

TEST(InitialValues, DefaultsByShapeAndName) {
  const auto init = [](const char* name, std::vector<int64_t> shape) {
    return DefaultInit({name, std::move(shape)});
  };
  EXPECT_EQ(init("attention.wq", {4, 4}).deviation, 0.02);
  ParamFacts small{"attention.wo", {4, 4}};
  small.deviation = 0.0134;
  EXPECT_EQ(DefaultInit(small).deviation, 0.0134);
  for (const char* norm : {"norm", "attention_norm", "attention.q_norm", "norm.weight"}) {
    EXPECT_EQ(init(norm, {4}).deviation, 0);
    EXPECT_EQ(init(norm, {4}).mean, 1) << norm;
  }
  for (const char* bias : {"attention.bq", "ffn.b1", "ffn_norm.bias", "bias"}) {
    EXPECT_EQ(init(bias, {4}).deviation, 0);
    EXPECT_EQ(init(bias, {4}).mean, 0) << bias;
  }
}

}  // namespace
}  // namespace fsdpd
