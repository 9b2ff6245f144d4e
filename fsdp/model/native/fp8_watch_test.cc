#include "fsdp/model/native/fp8_watch.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <limits>
#include <thread>

#include "fsdp/model/native/native_fp8.h"

namespace fsdpd {
namespace {

// Statistics of a class: elements, flushed, smallest and largest scale.
std::vector<float> Of(const at::Tensor& told, Fp8Class kind) {
  const float* const from = told.const_data_ptr<float>() + 4 * static_cast<int>(kind);
  return {from, from + 4};
}

// Of 70 rows, 0 and 64 are sampled. Half of their elements are 2^-20 of the largest, and are flushed.
at::Tensor Rows() {
  at::Tensor x = at::ones({70, 32}).to(at::kBFloat16);
  x[0].narrow(0, 0, 16).fill_(0x1p-20);
  x[0][31] = 0;
  x[64].mul_(448);
  x[1].fill_(0x1p-20)[0] = 448 * 16;  // An outlier, in a row whose elements are not sampled.
  return x;
}

TEST(Fp8Watch, CountsFlushedInSampledRowsAndScalesOfAll) {
  Fp8Watch watch(at::kCPU);
  {
    const Fp8Watch::Scope scope(&watch);
    Fp8Rows(Rows());
    Fp8Rows(Rows() * 4, at::full({32}, 0.5));
    Fp8Weights(Rows());
  }
  Fp8Rows(Rows() * 1e9);
  const at::Tensor told = watch.Read();
  EXPECT_EQ(Of(told, Fp8Class::kInputs), (std::vector<float>{63, 16, 1.0f / 448, 16}));
  EXPECT_EQ(Of(told, Fp8Class::kGradients), (std::vector<float>{63, 16, 2.0f / 448, 32}));
  EXPECT_EQ(Of(told, Fp8Class::kWeights), (std::vector<float>{63, 16, 0x1p-8f, 16}));
}

TEST(Fp8Watch, ZeroRowHasNoScaleAndNonFiniteRowShows) {
  Fp8Watch watch(at::kCPU);
  const Fp8Watch::Scope scope(&watch);
  Fp8Rows(at::zeros({70, 32}).to(at::kBFloat16));
  EXPECT_EQ(Of(watch.Read(), Fp8Class::kInputs)[3], 0);
  at::Tensor x = Rows();
  x[64][1] = std::numeric_limits<float>::infinity();
  Fp8Rows(x);
  EXPECT_EQ(Of(watch.Read(), Fp8Class::kInputs)[2], 1.0f / 448);
  EXPECT_EQ(Of(watch.Read(), Fp8Class::kInputs)[3], std::numeric_limits<float>::infinity());
}

TEST(Fp8Watch, ResetReportsNothingSeen) {
  Fp8Watch watch(at::kCPU);
  const std::vector<float> nothing = {0, 0, std::numeric_limits<float>::infinity(), 0};
  EXPECT_EQ(Of(watch.Read(), Fp8Class::kInputs), nothing);
  {
    const Fp8Watch::Scope scope(&watch);
    Fp8Rows(Rows());
    const Fp8Watch::Scope nobody(nullptr);
    Fp8Weights(Rows());
  }
  EXPECT_EQ(Of(watch.Read(), Fp8Class::kWeights), nothing);
  watch.Reset();
  EXPECT_EQ(Of(watch.Read(), Fp8Class::kInputs), nothing);
}

// All-gathers quantize weights on a lane of their own.
TEST(Fp8Watch, IsThreadSafe) {
  Fp8Watch watch(at::kCPU);
  const auto round = [&watch](Fp8Class kind) {
    const Fp8Watch::Scope scope(&watch);
    for (int i = 0; i < 50; ++i) kind == Fp8Class::kWeights ? Fp8Weights(Rows()) : Fp8Rows(Rows());
  };
  std::thread weights(round, Fp8Class::kWeights), inputs(round, Fp8Class::kInputs);
  for (int i = 0; i < 50; ++i) watch.Read();
  weights.join();
  inputs.join();
  EXPECT_EQ(Of(watch.Read(), Fp8Class::kInputs)[0], 50 * 63);
  EXPECT_EQ(Of(watch.Read(), Fp8Class::kWeights)[1], 50 * 16);
}

}  // namespace
}  // namespace fsdpd
