#include "fsdp/model/package/package_values.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "base/temp_dir.h"

namespace fsdpd {
namespace {

constexpr int64_t kElements = 200'000;

class PackageValuesTest : public ::testing::Test {
 protected:
  PackageValues Made() const {
    auto made = PackageValues::Make(recipe_, dir_.path(), elements_);
    EXPECT_TRUE(made.ok()) << made.status();
    return *made;
  }

  void WriteFloats(int64_t count) const {
    const at::Tensor values = at::arange(count, at::kFloat);
    std::ofstream(dir_.path() + "/w.bin", std::ios::binary)
        .write(static_cast<const char*>(values.const_data_ptr()), count * 4);
  }

  const TempDir dir_;
  v1::PackageUnit::InitialValue recipe_;
  int64_t elements_ = kElements;
};

TEST_F(PackageValuesTest, NormalValuesCanBeDrawnByADevice) {
  recipe_.mutable_normal()->set_mean(3);
  recipe_.mutable_normal()->set_std(0.5);
  const at::Tensor drawn = Made().Draw(7, 0, kElements);
  EXPECT_NEAR(drawn.mean().item<double>(), 3, 0.01);
  EXPECT_NEAR(drawn.std().item<double>(), 0.5, 0.01);
  const auto numbers = Made().Numbers(7);
  ASSERT_TRUE(numbers.has_value());
  EXPECT_EQ(drawn[5].item<float>(), kernels::NumberAt(*numbers, 5));
}

TEST_F(PackageValuesTest, UniformValuesCoverTheRange) {
  recipe_.mutable_uniform()->set_low(-2);
  recipe_.mutable_uniform()->set_high(6);
  const at::Tensor drawn = Made().Draw(7, 0, kElements);
  EXPECT_NEAR(drawn.mean().item<double>(), 2, 0.03);
  EXPECT_NEAR(drawn.std().item<double>(), 8 / std::sqrt(12.0), 0.03);
  EXPECT_GE(drawn.min().item<double>(), -2);
  EXPECT_LT(drawn.max().item<double>(), 6);
  EXPECT_FALSE(Made().Numbers(7).has_value());
}

TEST_F(PackageValuesTest, TruncatedValuesAreWithinTheirBound) {
  recipe_.mutable_normal()->set_mean(1);
  recipe_.mutable_normal()->set_std(0.5);
  recipe_.mutable_normal()->set_truncated_at(2);
  const at::Tensor drawn = Made().Draw(7, 0, kElements);
  EXPECT_LE((drawn - 1).abs().max().item<double>(), 1.0);
  // Standard deviation of a normal distribution that is truncated at 2: 0.8796.
  EXPECT_NEAR(drawn.std().item<double>(), 0.5 * 0.8796, 0.005);
}

TEST_F(PackageValuesTest, ConstantsAreConstant) {
  recipe_.set_constant(1);
  EXPECT_EQ(Made().Draw(7, 3, 2).sum().item<float>(), 2);
  EXPECT_TRUE(Made().Numbers(7).has_value());
}

TEST_F(PackageValuesTest, PartsEqualTheWhole) {
  v1::PackageUnit::InitialValue uniform, truncated;
  uniform.mutable_uniform()->set_high(1);
  truncated.mutable_normal()->set_std(1);
  truncated.mutable_normal()->set_truncated_at(1);
  for (const auto& recipe : {uniform, truncated}) {
    recipe_ = recipe;
    const PackageValues values = Made();
    EXPECT_TRUE(at::cat({values.Draw(9, 0, 7), values.Draw(9, 7, 30)}).equal(values.Draw(9, 0, 37)));
    EXPECT_FALSE(values.Draw(9, 0, 37).equal(values.Draw(10, 0, 37)));
  }
}

TEST_F(PackageValuesTest, FileIsReadInParts) {
  elements_ = 50;
  WriteFloats(50);
  recipe_.set_file("w.bin");
  EXPECT_TRUE(Made().Draw(0, 20, 3).equal(at::arange(20, 23, at::kFloat)));
}

TEST_F(PackageValuesTest, RefusesFileOfWrongSize) {
  elements_ = 51;
  WriteFloats(50);
  recipe_.set_file("w.bin");
  const auto made = PackageValues::Make(recipe_, dir_.path(), elements_);
  EXPECT_EQ(made.status().message(), dir_.path() + "/w.bin: wrong size (got 200 bytes, want 204)");
  recipe_.set_file("other.bin");
  EXPECT_FALSE(PackageValues::Make(recipe_, dir_.path(), elements_).ok());
}

TEST_F(PackageValuesTest, RefusesUnknownRecipe) {
  EXPECT_EQ(PackageValues::Make(recipe_, dir_.path(), 1).status().message(), "unknown kind of initial value");
}

}  // namespace
}  // namespace fsdpd
