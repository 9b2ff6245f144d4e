#include "fsdp/model/native/native_attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/softmax.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <tuple>

#include "fsdp/model/testing/fixed_seed.h"

namespace fsdpd {
namespace {

// Reference: the formula in double precision, with autograd. [batch, sequence, heads, head_size]
at::Tensor Reference(const AttentionInput& x) {
  const int64_t sequence = x.q.size(1), group = x.q.size(2) / x.k.size(2);
  const at::Tensor q = x.q.transpose(1, 2), k = x.k.transpose(1, 2).repeat_interleave(group, 1),
                   v = x.v.transpose(1, 2).repeat_interleave(group, 1);
  const at::Tensor future =
      at::full({sequence, sequence}, -std::numeric_limits<double>::infinity(), at::kDouble).triu(1);
  const at::Tensor scores = at::matmul(q, k.transpose(-2, -1)) / std::sqrt(x.q.size(-1)) + future;
  return at::matmul(at::softmax(scores, -1), v).transpose(1, 2);
}

double RelativeError(const at::Tensor& got, const at::Tensor& want) {
  return (got.to(at::kDouble) - want).norm().item<double>() / (want.norm().item<double>() + 1e-12);
}

struct Sizes {
  int64_t batch, sequence, heads, kv_heads, head_size;

  friend void PrintTo(const Sizes& s, std::ostream* out) {
    *out << s.batch << " x " << s.sequence << ", " << s.heads << "/" << s.kv_heads << " x " << s.head_size;
  }
};

using Param = std::tuple<AttentionKernel, Sizes, at::ScalarType>;

class AttentionTest : public ::testing::TestWithParam<Param> {};

TEST_P(AttentionTest, OutputAndGradientsEqualReference) {
  const auto [kernel, s, type] = GetParam();
  const auto heads = [&, s = s, type = type](int64_t count) {
    return at::randn({s.batch, s.sequence, count, s.head_size}).to(type);
  };
  const AttentionInput input{heads(s.heads), heads(s.kv_heads), heads(s.kv_heads)};
  const at::Tensor grad = heads(s.heads);

  const AttentionOutput output = AttentionForward(input, kernel);
  const AttentionInput grads = AttentionBackward(grad, input, output);

  const auto leaf = [](const at::Tensor& x) { return x.to(at::kDouble).set_requires_grad(true); };
  const AttentionInput leaves{leaf(input.q), leaf(input.k), leaf(input.v)};
  const at::Tensor expected = Reference(leaves);
  expected.backward(grad.to(at::kDouble));
  const double tolerance = type == at::kFloat ? 1e-5 : 0.02;
  EXPECT_LT(RelativeError(output.out, expected), tolerance);
  EXPECT_LT(RelativeError(grads.v, leaves.v.grad()), tolerance);
  if (s.sequence > 1) {  // With one score, the gradients of query and key are zero.
    EXPECT_LT(RelativeError(grads.q, leaves.q.grad()), tolerance);
    EXPECT_LT(RelativeError(grads.k, leaves.k.grad()), tolerance);
  }
  for (const at::Tensor& tensor : {output.out, grads.q, grads.k, grads.v}) {
    EXPECT_TRUE(tensor.is_contiguous());
    EXPECT_EQ(tensor.scalar_type(), type);
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, AttentionTest,
                         ::testing::Combine(::testing::Values(AttentionKernel::kHost,
                                                              AttentionKernel::kComposed),
                                            ::testing::Values(Sizes{2, 7, 4, 4, 8}, Sizes{3, 33, 6, 2, 5},
                                                              Sizes{1, 130, 8, 1, 16}, Sizes{2, 1, 4, 2, 6}),
                                            ::testing::Values(at::kFloat, at::kBFloat16)));

// Like a context-parallel chunk: causal over its own keys, and full over all earlier keys.
TEST(Attention, MergedKeySetsEqualFullAttention) {
  const int64_t chunk = 5;
  const auto heads = [](int64_t count) { return at::randn({2, 2 * chunk, count, 8}); };
  const AttentionInput all{heads(4), heads(2), heads(2)};
  const auto half = [](const at::Tensor& x, int64_t of) { return x.narrow(1, of * chunk, chunk); };
  const AttentionInput own{half(all.q, 1), half(all.k, 1), half(all.v, 1), /*causal=*/true};
  const AttentionInput before{half(all.q, 1), half(all.k, 0), half(all.v, 0), /*causal=*/false};
  AttentionOutput first = AttentionForward(own, AttentionKernel::kHost);
  AttentionOutput second = AttentionForward(before, AttentionKernel::kHost);
  const AttentionOutput whole = AttentionForward(all, AttentionKernel::kHost);
  const at::Tensor out = at::full(all.q.sizes(), -1.0f);
  JoinAttention(&first, &second, half(out, 1));
  EXPECT_LT(RelativeError(half(out, 1), half(whole.out, 1).to(at::kDouble)), 1e-6);
  EXPECT_TRUE(half(out, 0).eq(-1).all().item<bool>());
  EXPECT_TRUE(first.log_sum_exp.equal(second.log_sum_exp));
  EXPECT_TRUE(first.log_sum_exp.allclose(whole.log_sum_exp.narrow(2, chunk, chunk)));
}

TEST(Attention, CpuTensorsUseHostKernel) {
  const at::Tensor x = at::randn({1, 4, 2, 8});
  EXPECT_EQ(ChooseAttentionKernel({x, x, x}), AttentionKernel::kHost);
}

}  // namespace
}  // namespace fsdpd
