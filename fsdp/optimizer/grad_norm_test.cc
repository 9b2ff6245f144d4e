#include "fsdp/optimizer/grad_norm.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include "fsdp/model/testing/fixed_seed.h"

namespace fsdpd {
namespace {

double Squares(const std::vector<at::Tensor>& grads) {
  std::vector<at::Tensor> pieces;
  for (const at::Tensor& grad : grads) AddPieces(grad, &pieces);
  return SumOfSquares(pieces).item<double>();
}

// One after the other in fp32, these squares come out 2e-4 too small.
TEST(GradNorm, OfALargeBucketIsNotTooSmall) {
  const at::Tensor grad = at::randn({23'000'000});
  const double exact = grad.to(at::kDouble).square().sum().item<double>();
  EXPECT_NEAR(Squares({grad}) / exact, 1, 1e-6);
}

TEST(GradNorm, AddsBucketsOfAnySizeAndType) {
  const at::Tensor ones = at::full({65'537}, 1.0f), twos = at::full({3}, 2.0, at::kBFloat16);
  EXPECT_EQ(Squares({ones, at::full({0}, 1.0f), twos}), 65'537 + 12);
}

TEST(GradNorm, OfAnEmptyShardHasNoPieces) {
  std::vector<at::Tensor> pieces;
  AddPieces(at::full({0}, 1.0f), &pieces);
  EXPECT_TRUE(pieces.empty());
}

}  // namespace
}  // namespace fsdpd
