// CUDA kernels of native_ops compared with the CPU implementation in double precision, in every type, at
// sizes with and without partial packs. Skipped without a GPU.
#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <utility>
#include <vector>

#include "fsdp/model/native/native_attention.h"
#include "fsdp/model/native/native_heads.h"
#include "fsdp/model/native/native_linear.h"
#include "fsdp/model/native/native_ops.h"
#include "fsdp/model/testing/fixed_seed.h"
#include "fsdp/model/unit/unit.h"

namespace fsdpd {
namespace {

using Shape = std::vector<int64_t>;

class NativeOpsCuda : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  void SetUp() override {
    if (!at::hasCUDA()) GTEST_SKIP() << "no GPU";
  }

  // Of the type under test, on the CPU.
  static at::Tensor Random(at::IntArrayRef shape) { return at::randn(shape).to(GetParam()); }

  static void ExpectNear(const at::Tensor& cuda, const at::Tensor& exact) {
    ASSERT_EQ(cuda.sizes(), exact.sizes());
    ASSERT_FALSE(cuda.isnan().any().item<bool>());
    const double bound = GetParam() == at::kFloat ? 5e-6 : GetParam() == at::kHalf ? 1e-3 : 6e-3;
    const double norm = exact.norm().item<double>();
    EXPECT_LE((cuda.cpu().to(at::kDouble) - exact).norm().item<double>(), bound * norm + 1e-12);
  }

  static at::Tensor Exact(const at::Tensor& x) { return x.to(at::kDouble); }
};

// Including unaligned addresses and zero rows.
TEST_P(NativeOpsCuda, LinearForwardAndAddLinearEqualCpu) {
  const Shape shapes[] = {{0, 8, 8}, {1, 1, 1}, {7, 13, 5}, {256, 512, 384}};
  for (const Shape& shape : shapes) {
    for (const int64_t offset : {0, 1}) {
      const at::Tensor residual = Random({shape[0], shape[1]}), x = Random({shape[0], shape[2]});
      const at::Tensor weight = Random({offset + shape[1] * shape[2]});
      const auto matrix = [&](const at::Tensor& of) {
        return of.narrow(0, offset, shape[1] * shape[2]).view({shape[1], shape[2]});
      };
      const at::Tensor cuda_residual = residual.cuda();
      const at::Tensor sum = AddLinear(cuda_residual, x.cuda(), Matrices{matrix(weight.cuda())});
      ExpectNear(sum, AddLinear(Exact(residual), Exact(x), Matrices{matrix(Exact(weight))}));
      EXPECT_TRUE(cuda_residual.cpu().equal(residual));
      ExpectNear(LinearForward(x.cuda(), Matrices{matrix(weight.cuda())}),
                 LinearForward(Exact(x), Matrices{matrix(Exact(weight))}));
    }
  }
}

// Two adapters, adjacent.
TEST_P(NativeOpsCuda, AdaptersEqualCpu) {
  struct Case {
    int64_t tokens, inputs, outputs, rank;
  };
  for (const auto& [tokens, inputs, outputs, rank] :
       {Case{1, 8, 8, 8}, Case{70, 64, 520, 8}, Case{33, 16, 24, 12}, Case{33, 16, 23, 1}}) {
    const at::Tensor x = Random({tokens, inputs}), grad = Random({tokens, 2 * outputs});
    const at::Tensor matrices = Random({2, outputs, inputs}), a = Random({2, rank, inputs}),
                     b = Random({2, outputs, rank});
    const auto run = [&](const std::function<at::Tensor(const at::Tensor&)>& to, at::ScalarType grads) {
      const at::Tensor w = to(matrices), all_a = to(a), all_b = to(b);
      const Weights weights({w[0], w[1]}, {{all_a[0], all_a[1]}, {all_b[0], all_b[1]}, 0.25});
      const at::Tensor a_into = at::full_like(all_a, 3.0, grads), b_into = at::full_like(all_b, 3.0, grads);
      AdapterBackward backward = {{}, weights.EmptyLow(to(x)), {b_into[0], b_into[1]}};
      const at::Tensor y = LinearForward(to(x), weights, {}, &backward.low);
      at::Tensor dx;
      for (const bool accumulate : {false, true}) {
        backward.accumulate = accumulate;
        dx = LinearBackward(to(grad), weights, backward);
        AdapterInputGradsInto(backward.grad_low, to(x), accumulate, {a_into[0], a_into[1]});
      }
      return std::vector<at::Tensor>{y, dx, a_into, b_into, backward.low, backward.grad_low};
    };
    for (const at::ScalarType grads : {at::kFloat, GetParam()}) {
      const auto got = run([](const at::Tensor& of) { return of.cuda(); }, grads);
      const auto want = run(Exact, at::kDouble);
      for (size_t i = 0; i < got.size(); ++i) {
        SCOPED_TRACE(::testing::Message() << i << " of " << tokens << "x" << outputs << " rank " << rank);
        ExpectNear(got[i], want[i]);
      }
    }
  }
}

TEST_P(NativeOpsCuda, SwigluEqualsCpu) {
  for (const Shape& shape : {Shape{0, 8}, Shape{1, 1}, Shape{7, 13}, Shape{64, 1000}}) {
    const at::Tensor gate_up = Random({shape[0], 2 * shape[1]}) * 2, grad = Random(shape);
    const at::Tensor cuda = gate_up.cuda(), exact = Exact(gate_up);
    const at::Tensor product = SwigluForward(cuda), cuda_grad = grad.cuda();
    ExpectNear(product, SwigluForward(exact));
    SwigluBackward(cuda_grad, cuda);
    SwigluBackward(Exact(grad), exact);
    ExpectNear(cuda, exact);
    EXPECT_TRUE(cuda_grad.equal(product));
  }
}

// Adapters of gate, up and down, or of one of them.
TEST_P(NativeOpsCuda, AdaptedSwigluEqualsSeparateProducts) {
  struct Case {
    int64_t rows, width, rank;
  };
  for (const auto& [rows, width, rank] : {Case{0, 8, 8}, Case{1, 8, 1}, Case{37, 40, 3}, Case{130, 264, 8},
                                          Case{300, 136, 16}, Case{65, 72, 32}}) {
    for (const int adapted : {7, 1, 2, 4}) {
      SCOPED_TRACE(::testing::Message() << rows << "x" << width << " rank " << rank << " of " << adapted);
      const at::Tensor gate_up = Random({rows, 2 * width}), grad = Random({rows, width}),
                       b = Random({2, width, rank}), a = Random({rank, width}),
                       narrow = Random({rank, width}), matrix = at::empty({width, 8}, b.options());
      LoraAdapters adapters;
      for (const int i : {0, 1}) {
        adapters.a.push_back((adapted >> i & 1) != 0 ? narrow.cuda() : at::Tensor());
        adapters.b.push_back((adapted >> i & 1) != 0 ? b[i].cuda() : at::Tensor());
      }
      const Weights of({matrix.cuda(), matrix.cuda()}, adapters);
      Weights down(Matrices{matrix.t().contiguous().cuda()});
      if (adapted >= 4) down = {{down.plain[0]}, {{a.cuda()}, {matrix.cuda()}, 1}};
      ASSERT_EQ(TakesAdaptedSwiglu(of, down), GetParam() == at::kBFloat16);
      if (GetParam() != at::kBFloat16) continue;

      const at::Tensor low = Random({rows, std::max<int64_t>(of.adapters.ranks(), 1)}),
                       grad_low = Random({rows, rank});
      const at::Tensor exact = Exact(gate_up), exact_grad = Exact(grad);
      int64_t begin = 0;
      for (const int i : {0, 1}) {
        if ((adapted >> i & 1) == 0) continue;
        exact.narrow(1, i * width, width).addmm_(Exact(low).narrow(1, begin, rank), Exact(b[i]).t());
        begin += rank;
      }
      if (adapted >= 4) exact_grad.addmm_(Exact(grad_low), Exact(a));
      const at::Tensor cuda = gate_up.cuda(), cuda_grad = grad.cuda(), cuda_low = low.cuda();
      const at::Tensor product = AdaptedSwigluForward(cuda, {of, cuda_low});
      ExpectNear(product, SwigluForward(exact));
      EXPECT_TRUE(cuda.cpu().equal(gate_up));
      AdaptedSwigluBackward(cuda_grad, cuda, {of, cuda_low}, {down, grad_low.cuda()});
      SwigluBackward(exact_grad, exact);
      ExpectNear(cuda, exact);
      EXPECT_TRUE(cuda_grad.equal(product));
    }
  }
}

TEST_P(NativeOpsCuda, SwigluOfVeryNegativeGateIsZero) {
  const at::Tensor gate_up = at::full({1, 32}, 3.0, GetParam()).cuda();
  gate_up.narrow(1, 0, 16).fill_(-200.0);
  EXPECT_TRUE(SwigluForward(gate_up).eq(0).all().item<bool>());
  SwigluBackward(gate_up.narrow(1, 16, 16).clone(), gate_up);
  EXPECT_TRUE(gate_up.eq(0).all().item<bool>());
}

TEST_P(NativeOpsCuda, RotationEqualsCpu) {
  for (const int64_t head_size : {2, 6, 64, 128}) {
    LlamaConfig config;
    config.head_size = head_size;
    const Rotary cpu = MakeRotary(config, 37, at::kCPU), cuda = MakeRotary(config, 37, at::kCUDA);
    const at::Tensor q = Random({2, 37, 6, head_size}), k = Random({2, 37, 3, head_size});
    // Packed in the row of a product, followed by values.
    const at::Tensor row = at::zeros({2, 37, 12, head_size}, GetParam()).cuda();
    const at::Tensor positions = at::randint(37, {2, 37}, at::kLong);
    for (const at::Tensor& at_positions : {at::Tensor(), positions}) {
      const at::Tensor cuda_positions = at_positions.defined() ? at_positions.cuda() : at_positions;
      const at::Tensor cuda_q = row.narrow(2, 0, 6), cuda_k = row.narrow(2, 6, 3);
      cuda_q.copy_(q);
      cuda_k.copy_(k);
      const at::Tensor exact_q = Exact(q).clone(), exact_k = Exact(k).clone();
      RotateForward(cuda, cuda_positions, {cuda_q, cuda_k});
      RotateForward(cpu, at_positions, {exact_q, exact_k});
      ExpectNear(cuda_q, exact_q);
      ExpectNear(cuda_k, exact_k);
      const at::Tensor back_q = at::empty_like(q).cuda(), back_k = at::empty_like(k).cuda();
      RotateBackward(cuda, cuda_positions, {cuda_q, cuda_k}, {back_q, back_k});
      ExpectNear(back_q, Exact(q));
      ExpectNear(back_k, Exact(k));
    }
  }
}

// Like a gradient that was summed over the query heads of one key head: its dimension of size one has another
// stride.
TEST_P(NativeOpsCuda, RotationSupportsSingleKeyHead) {
  LlamaConfig config;
  config.head_size = 16;
  const Rotary cpu = MakeRotary(config, 5, at::kCPU), cuda = MakeRotary(config, 5, at::kCUDA);
  const at::Tensor q = Random({2, 5, 4, 16}), k = Random({2, 1, 5, 16});
  const at::Tensor cuda_q = q.cuda(), cuda_k = k.cuda().transpose(1, 2);
  const at::Tensor exact_q = Exact(q), exact_k = Exact(k).transpose(1, 2);
  RotateBackward(cuda, /*positions=*/{}, {cuda_q, cuda_k}, {cuda_q, cuda_k});
  RotateBackward(cpu, /*positions=*/{}, {exact_q, exact_k}, {exact_q, exact_k});
  ExpectNear(cuda_q, exact_q);
  ExpectNear(cuda_k, exact_k);
}

// Heads that occupy some or all lanes, and heads that are not a multiple of a pack.
TEST_P(NativeOpsCuda, NormedHeadsEqualCpu) {
  for (const int64_t head_size : {6, 16, 32, 48, 64, 96, 128, 256}) {
    for (const int64_t tokens : {1, 37}) {
      LlamaConfig config;
      config.head_size = head_size;
      const Rotary cpu = MakeRotary(config, tokens, at::kCPU), cuda = MakeRotary(config, tokens, at::kCUDA);
      const at::Tensor x = Random({3, tokens, 12, head_size}), q_weight = Random({head_size}),
                       k_weight = Random({head_size});
      const at::Tensor grad_q = Random({3, tokens, 7, head_size}), grad_k = Random({3, tokens, 2, head_size});
      const auto heads = [](const at::Tensor& row) {
        return QueriesAndKeys{row.narrow(2, 0, 7), row.narrow(2, 7, 2)};
      };
      const at::Tensor positions = at::randint(tokens, {3, tokens}, at::kLong);
      for (const bool accumulate : {false, true}) {
        const at::Tensor row = x.cuda(), exact = Exact(x).clone();
        const HeadNorms norms = {q_weight.cuda(), k_weight.cuda(), 1e-3},
                        exact_norms = {Exact(q_weight), Exact(k_weight), 1e-3};
        const at::Tensor at_cpu = accumulate ? positions : at::Tensor(),
                         at_cuda = accumulate ? positions.cuda() : at::Tensor();
        const NormedHeads got = NormAndRotate(cuda, at_cuda, heads(row), norms);
        const NormedHeads want = NormAndRotate(cpu, at_cpu, heads(exact), exact_norms);
        ExpectNear(got.transposed.q, want.transposed.q);
        ExpectNear(got.transposed.k, want.transposed.k);
        const at::Tensor of_q = at::full({head_size}, 1.0, at::kCUDA), of_k = of_q.clone();
        const at::Tensor want_q = at::full({head_size}, 1.0, at::kDouble), want_k = want_q.clone();
        NormAndRotateBackward(cuda, at_cuda, {grad_q.cuda(), grad_k.cuda()}, got, norms,
                              {of_q, of_k, accumulate}, heads(row));
        NormAndRotateBackward(cpu, at_cpu, {Exact(grad_q).clone(), Exact(grad_k).clone()}, want, exact_norms,
                              {want_q, want_k, accumulate}, heads(exact));
        ExpectNear(heads(row).q, heads(exact).q);
        ExpectNear(heads(row).k, heads(exact).k);
        EXPECT_TRUE(row.narrow(2, 9, 3).cpu().equal(x.narrow(2, 9, 3)));
        ExpectNear(of_q, want_q);
        ExpectNear(of_k, want_k);
      }
    }
  }
}

TEST_P(NativeOpsCuda, RmsNormForwardEqualsCpu) {
  for (const Shape& shape : {Shape{0, 8}, Shape{1, 8}, Shape{5, 4096}, Shape{3, 8192}, Shape{70, 1032},
                             Shape{5, 7}, Shape{2, 16384}, Shape{20001, 128}, Shape{77, 96}, Shape{9, 40}}) {
    const at::Tensor x = Random(shape) * 3, weight = Random({shape[1]});
    const Normed cuda = RmsNormForward(x.cuda(), weight.cuda(), 1e-3);
    const Normed exact = RmsNormForward(Exact(x), Exact(weight), 1e-3);
    ExpectNear(cuda.y, exact.y);
    const at::Tensor place = Random(shape).cuda(), grad = place.clone(), none;
    const at::Tensor grad_x = RmsNormBackward(grad, x.cuda(), cuda.rstd, weight.cuda(), grad, false, none);
    const at::Tensor also =
        RmsNormBackward(place, x.cuda(), cuda.rstd, weight.cuda(), grad, false, none, /*y_into=*/place);
    EXPECT_TRUE(also.equal(grad_x) && place.equal(cuda.y));
    ASSERT_EQ(cuda.rstd.sizes(), exact.rstd.sizes());
    EXPECT_LE((cuda.rstd.cpu() - exact.rstd).norm().item<double>(), 2e-6 * exact.rstd.norm().item<double>());
  }
}

// More rows than blocks, fewer, and one; widths of one, two and four packs per thread, narrow rows, and one
// width that the kernels do not support.
TEST_P(NativeOpsCuda, RmsNormBackwardEqualsCpu) {
  const Shape shapes[] = {{1, 8},  {3, 4096},  {700, 256},   {1100, 1032}, {40, 8192}, {5, 7},
                          {9, 40}, {9, 16384}, {20001, 128}, {77, 96},     {4500, 64}};
  for (const Shape& shape : shapes) {
    const at::Tensor x = Random(shape) * 3, grad = Random(shape), residual = Random(shape);
    const at::Tensor weight = Random({shape[1]});
    const at::Tensor exact_rstd = Exact(x).square().mean(-1, true).add(1e-5).rsqrt();
    const at::Tensor rstd = exact_rstd.to(at::kFloat).cuda();
    const at::Tensor into = at::full({shape[1]}, 2, at::kFloat).cuda();
    const at::Tensor exact_into = at::full({shape[1]}, 2, at::kDouble);
    for (const at::Tensor& also : {residual, at::Tensor()}) {
      const bool accumulate = also.defined();
      const at::Tensor cuda = RmsNormBackward(grad.cuda(), x.cuda(), rstd, weight.cuda(),
                                              also.defined() ? also.cuda() : also, accumulate, into);
      // The CPU computes in fp32 for every type, so the tolerance is that of fp32.
      const at::Tensor exact = RmsNormBackward(Exact(grad), Exact(x), exact_rstd, Exact(weight),
                                               also.defined() ? Exact(also) : also, accumulate, exact_into);
      ExpectNear(cuda, exact);
      ExpectNear(into, exact_into);
    }
    RmsNormBackward(grad.cuda(), x.cuda(), rstd, weight.cuda(), {}, false, /*weight_grad_into=*/{});
  }
}

TEST_P(NativeOpsCuda, RmsNormWritesWeightGradientInBufferType) {
  const at::Tensor x = at::full({1000, 64}, 1, GetParam()).cuda(), weight = x[0].clone();
  const at::Tensor rstd = at::full({1000, 1}, 1, at::kFloat).cuda();
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const at::Tensor into = at::full({64}, 24, type).cuda();
    RmsNormBackward(x, x, rstd, weight, {}, /*accumulate=*/true, into);
    EXPECT_TRUE(into.eq(1024).all().item<bool>()) << type;
  }
}

TEST_P(NativeOpsCuda, RmsNormGradientsAreDeterministic) {
  const at::Tensor x = Random({3000, 512}).cuda(), grad = Random({3000, 512}).cuda();
  const at::Tensor weight = Random({512}).cuda(), rstd = at::full({3000, 1}, 1, at::kFloat).cuda();
  const at::Tensor first = at::full({512}, 0, at::kFloat).cuda(), second = first.clone();
  const at::Tensor x1 = RmsNormBackward(grad, x, rstd, weight, {}, false, first);
  const at::Tensor x2 = RmsNormBackward(grad, x, rstd, weight, {}, false, second);
  EXPECT_TRUE(x1.equal(x2));
  EXPECT_TRUE(first.equal(second));
}

TEST_P(NativeOpsCuda, CrossEntropyEqualsCpu) {
  for (const int64_t vocabulary : {1, 9, 1000, 40'000}) {
    at::Tensor logits = Random({6, vocabulary}) * 5;
    at::Tensor targets = at::randint(vocabulary, {6}, at::kLong);
    targets[2] = kIgnoredTarget;
    targets[3] = vocabulary - 1;
    targets[4] = kTargetElsewhere;
    at::Tensor cuda = logits.cuda(), exact = Exact(logits);
    const ChunkLoss got = CrossEntropyForward(cuda, targets.cuda()),
                    want = CrossEntropyForward(exact, targets);
    EXPECT_NEAR(got.loss.item<double>(), want.loss.item<double>(), 2e-6 * want.loss.item<double>() + 1e-6);
    EXPECT_LE((got.log_sum_exp.cpu() - want.log_sum_exp).abs().max().item<double>(), 1e-5);
    const at::Tensor scale = at::full({}, 3.0f);
    CrossEntropyBackward(got.log_sum_exp, targets.cuda(), scale.cuda(), &cuda);
    CrossEntropyBackward(want.log_sum_exp, targets, scale, &exact);
    ExpectNear(cuda, exact);
    EXPECT_TRUE(cuda[2].eq(0).all().item<bool>());
  }
}

// Non-finite loss and gradients are how a step is detected as invalid and skipped.
TEST_P(NativeOpsCuda, CrossEntropyPropagatesNonFiniteLogits) {
  for (const double bad :
       {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    at::Tensor logits = Random({2, 3000});
    logits[1][1234] = bad;
    const at::Tensor targets = at::full({2}, 5, at::kLong);
    const ChunkLoss chunk = CrossEntropyForward(logits.cuda(), targets.cuda());
    EXPECT_FALSE(chunk.loss.isfinite().item<bool>());
  }
}

// The rank's own part must come from `sent`, not from `received`.
TEST_P(NativeOpsCuda, SumOfPartsEqualsCpu) {
  for (const Shape& shape : {Shape{2, 0}, Shape{1, 5}, Shape{2, 513}, Shape{4, 3, 4096}}) {
    for (const bool adds : {false, true}) {
      const at::Tensor sent = Random(shape), received = Random(shape);
      const at::Tensor addend = adds ? Random(at::IntArrayRef(shape).slice(1)) : at::Tensor();
      const at::Tensor sum =
          SumOfParts(sent.cuda(), received.cuda(), shape[0] - 1, adds ? addend.cuda() : addend);
      EXPECT_TRUE(sum.cpu().equal(SumOfParts(sent, received, shape[0] - 1, addend)));
    }
  }
}

// Log-sum-exp in the shapes of two kernels, and strided output samples.
TEST_P(NativeOpsCuda, JoinAttentionEqualsCpu) {
  for (const int64_t head_size : {3, 8, 128}) {
    const int64_t samples = 2, tokens = 37, heads = 3;
    const auto attended = [&](bool column) {
      AttentionOutput of;
      of.out = Random({samples, tokens, heads, head_size});
      of.log_sum_exp = at::randn({samples, heads, tokens}) * 3;
      if (column) of.log_sum_exp = of.log_sum_exp.unsqueeze(-1);
      return of;
    };
    const auto on = [](at::Device device, AttentionOutput of) {
      of.out = of.out.to(device);
      of.log_sum_exp = of.log_sum_exp.clone().to(device);
      return of;
    };
    const AttentionOutput first = attended(true), second = attended(false);
    const auto join = [&](at::Device device, AttentionOutput* a, AttentionOutput* b) {
      *a = on(device, first);
      *b = on(device, second);
      const at::Tensor capacity = at::full({samples, 2 * tokens, heads, head_size}, -1, a->out.options());
      JoinAttention(a, b, capacity.narrow(1, tokens, tokens));
      return capacity;
    };
    AttentionOutput a, b, cpu_a, cpu_b;
    const at::Tensor got = join(at::kCUDA, &a, &b), want = join(at::kCPU, &cpu_a, &cpu_b);
    ExpectNear(got, Exact(want));
    EXPECT_TRUE(got.narrow(1, 0, tokens).eq(-1).all().item<bool>());
    for (const auto& [joined, cpu] : {std::pair(a, cpu_a), std::pair(b, cpu_b)}) {
      ASSERT_EQ(joined.log_sum_exp.sizes(), cpu.log_sum_exp.sizes());
      EXPECT_LE((joined.log_sum_exp.cpu() - cpu.log_sum_exp).abs().max().item<double>(), 1e-5);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, NativeOpsCuda, ::testing::Values(at::kFloat, at::kBFloat16, at::kHalf),
                         [](const auto& info) { return c10::toString(info.param); });

}  // namespace
}  // namespace fsdpd
