#include "fsdp/optimizer/grad_norm.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include "fsdp/model/testing/fixed_seed.h"

namespace fsdpd {
namespace {

double SquaresOf(const std::vector<at::Tensor>& grads) {
  GradSquares squares;
  for (const at::Tensor& grad : grads) squares.Add(grad, /*copies=*/1);
  return squares.Sum().item<double>();
}

// Added sequentially in fp32, the sum of these squares is 2e-4 too small.
TEST(GradNorm, IsAccurateForLargeBuckets) {
  const at::Tensor grad = at::randn({23'000'000});
  const double exact = grad.to(at::kDouble).square().sum().item<double>();
  EXPECT_NEAR(SquaresOf({grad}) / exact, 1, 1e-6);
}

TEST(GradNorm, AddsBucketsOfAnySizeAndType) {
  const at::Tensor ones = at::full({65'537}, 1.0f), twos = at::full({3}, 2.0, at::kBFloat16);
  EXPECT_EQ(SquaresOf({ones, at::full({0}, 1.0f), twos}), 65'537 + 12);
}

TEST(GradNorm, IsUndefinedIfEmpty) {
  GradSquares squares;
  squares.Add(at::full({0}, 1.0f), /*copies=*/1);
  squares.AddParts(0, /*copies=*/1, at::kCPU);
  EXPECT_FALSE(squares.Sum().defined());
}

// Gradients that four ranks hold count a quarter on each, whoever computed their squares.
TEST(GradNorm, AddsPartialSumsAndDividesByCopies) {
  GradSquares squares;
  squares.Add(at::full({3}, 2.0f), /*copies=*/1);
  squares.Add(at::full({5}, 4.0f), /*copies=*/4);
  const at::Tensor once = squares.AddParts(2, /*copies=*/1, at::kCPU);
  const at::Tensor more = squares.AddParts(3, /*copies=*/1, at::kCPU);
  const at::Tensor shared = squares.AddParts(2, /*copies=*/4, at::kCPU);
  EXPECT_EQ(squares.Sum().item<float>(), 12 + 20);
  for (int step = 1; step <= 2; ++step) {
    once.fill_(100.0f * step);
    more.fill_(1000.0f * step);
    shared.fill_(2.0f * step);
    EXPECT_EQ(squares.Sum().item<float>(), 12 + 20 + step * (200 + 3000 + 1)) << step;
  }
}

}  // namespace
}  // namespace fsdpd
