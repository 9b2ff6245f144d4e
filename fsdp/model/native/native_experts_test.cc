#include "fsdp/model/native/native_experts.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <limits>

#include "fsdp/model/testing/fixed_seed.h"

namespace fsdpd {
namespace {

constexpr int64_t kInputs = 5, kOutputs = 3;

using RowCounts = std::vector<int64_t>;

// Experts without rows at the start, in the middle and at the end, and an expert that has all rows.
const std::vector<RowCounts> kCounts = {{0, 4, 0, 1, 2, 0}, {0, 0, 7, 0, 0, 0}, {2, 1, 1, 1, 1, 1}};

void ExpectNear(const at::Tensor& got, const at::Tensor& want) {
  ASSERT_EQ(got.sizes(), want.sizes());
  EXPECT_LT((got - want).abs().max().item<double>(), 1e-5);
}

// The expert of each row.
std::vector<int64_t> ExpertsOf(const RowCounts& counts) {
  std::vector<int64_t> experts;
  for (size_t e = 0; e < counts.size(); ++e)
    experts.insert(experts.end(), counts[e], static_cast<int64_t>(e));
  return experts;
}

at::Tensor EndsOf(const RowCounts& counts) { return at::tensor(counts).cumsum(0).to(at::kInt); }

TEST(NativeExperts, RowsMultiplyTheirExpertsMatrices) {
  for (const RowCounts& counts : kCounts) {
    const std::vector<int64_t> experts = ExpertsOf(counts);
    const at::Tensor ends = EndsOf(counts);
    const at::Tensor rows = at::randn({7, kInputs}), grad = at::randn({7, 2 * kOutputs});
    const at::Tensor a = at::randn({6, kOutputs, kInputs}), b = at::randn({6, kOutputs, kInputs});
    const at::Tensor out = ExpertsForward(rows, ends, {a, b});
    const at::Tensor back = ExpertsBackward(grad, ends, {a, b})[0];
    at::Tensor into_a = at::full({6, kOutputs, kInputs}, std::numeric_limits<float>::quiet_NaN());
    at::Tensor into_b = at::zeros_like(into_a);
    ExpertsGradsInto(grad, rows, ends, kOutputs, /*accumulate=*/false, {into_a, at::Tensor()});
    for (int twice = 0; twice < 2; ++twice)
      ExpertsGradsInto(grad, rows, ends, kOutputs, /*accumulate=*/true, {at::Tensor(), into_b});
    at::Tensor want_a = at::zeros_like(into_a), want_b = at::zeros_like(into_a);
    for (int64_t r = 0; r < 7; ++r) {
      const at::Tensor both = at::cat({a[experts[r]], b[experts[r]]});
      ExpectNear(out[r], at::matmul(both, rows[r]));
      ExpectNear(back[r], at::matmul(both.t(), grad[r]));
      want_a[experts[r]] += at::outer(grad[r].narrow(0, 0, kOutputs), rows[r]);
      want_b[experts[r]] += at::outer(grad[r].narrow(0, kOutputs, kOutputs), rows[r]);
    }
    ExpectNear(into_a, want_a);  // Zero for experts without rows.
    ExpectNear(into_b, 2 * want_b);
  }
}

// Reference: autograd, with the weight applied afterwards.
TEST(NativeExperts, WeighedSwigluEqualsAutograd) {
  const at::Tensor gate_up = at::randn({7, 10}).set_requires_grad(true);
  const at::Tensor weights = at::randn({7, 1}).set_requires_grad(true);
  const at::Tensor grad = at::randn({7, 5});
  const at::Tensor want = at::silu(gate_up.narrow(1, 0, 5)) * gate_up.narrow(1, 5, 5) * weights;
  (want * grad).sum().backward();
  const at::NoGradGuard no_grad;
  const at::Tensor into = gate_up.detach().clone();
  ExpectNear(WeighedSwigluForward(into, weights), want);
  const WeighedSwigluGrads grads = WeighedSwigluBackward(grad.clone(), into, weights);
  ExpectNear(grads.product, want);
  ExpectNear(grads.weights, weights.grad());
  ExpectNear(into, gate_up.grad());
}

}  // namespace
}  // namespace fsdpd
