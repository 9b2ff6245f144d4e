// FP8 quantization on CUDA compared with the CPU implementation, bitwise; products and the three directions
// of a linear layer within a tolerance, since sums have another order. Sizes with and without partial tiles.
// Skipped without a GPU; products need a GPU with FP8.
#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/index.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "fsdp/model/native/fp8_watch.h"
#include "fsdp/model/native/native_fp8.h"
#include "fsdp/model/native/native_fp8_experts.h"
#include "fsdp/model/native/native_fp8_ops.h"
#include "fsdp/model/native/native_linear.h"
#include "fsdp/model/native/native_ops.h"
#include "fsdp/model/native/native_rows.h"
#include "fsdp/model/testing/fixed_seed.h"
#include "fsdp/torch/cuda_device.h"

namespace fsdpd {
namespace {

class NativeFp8Cuda : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!at::hasCUDA()) GTEST_SKIP() << "no GPU";
  }

  static at::Tensor Random(int64_t rows, int64_t width) { return at::randn({rows, width}).to(at::kBFloat16); }

  // Except for non-finite rows, whose NaNs may differ in sign.
  static void ExpectSameBits(const Fp8& cuda, const Fp8& host) {
    ASSERT_EQ(cuda.values.sizes(), host.values.sizes());
    const at::Tensor finite = host.scales.isfinite();
    EXPECT_TRUE(cuda.scales.cpu().isfinite().equal(finite));
    const auto bits = [&](const at::Tensor& of, at::ScalarType type) {
      return of.cpu().contiguous().view(type).index({finite});
    };
    EXPECT_TRUE(bits(cuda.scales, at::kInt).equal(bits(host.scales, at::kInt)));
    EXPECT_TRUE(bits(cuda.values, at::kByte).equal(bits(host.values, at::kByte)));
  }

  static void ExpectNear(const at::Tensor& cuda, const at::Tensor& host) {
    ASSERT_EQ(cuda.sizes(), host.sizes());
    ASSERT_EQ(cuda.scalar_type(), host.scalar_type());
    const at::Tensor got = cuda.cpu().to(at::kDouble), want = host.to(at::kDouble);
    ASSERT_TRUE(got.isfinite().all().item<bool>());
    EXPECT_LE((got - want).norm().item<double>(), 4e-3 * want.norm().item<double>() + 1e-12);
  }
};

TEST_F(NativeFp8Cuda, RowsEqualCpuBits) {
  const std::vector<std::vector<int64_t>> shapes = {{0, 16},   {1, 16},     {7, 48},     {130, 80},
                                                    {129, 64}, {256, 4096}, {33, 14336}, {5, 40960}};
  for (const std::vector<int64_t>& shape : shapes) {
    const at::Tensor x = Random(shape[0], shape[1]);
    if (shape[0] > 3) {
      x[1].mul_(1e30);
      x[2].mul_(1e-38);
      x[3].zero_();
    }
    const at::Tensor cuda = x.cuda();
    ExpectSameBits(Fp8Rows(cuda), Fp8Rows(x));
    if (shape[0] > 0) ExpectSameBits(Fp8Columns(cuda), Fp8Columns(x));
    const at::Tensor powers = Fp8Weights(Random(shape[1], 16)).scales;
    ExpectSameBits(Fp8Rows(cuda, powers.cuda()), Fp8Rows(x, powers));
    ExpectSameBits(Fp8Weights(cuda), Fp8Weights(x));
    ExpectSameBits(Fp8Weights(cuda.to(at::kFloat)), Fp8Weights(x));
  }
}

TEST_F(NativeFp8Cuda, ReadsStridedAndUnalignedRows) {
  const at::Tensor wide = Random(37, 200);
  for (const int64_t begin : {0, 8, 3}) {
    const at::Tensor part = wide.narrow(1, begin, 96), cuda = wide.cuda().narrow(1, begin, 96);
    ExpectSameBits(Fp8Rows(cuda), Fp8Rows(part));
    ExpectSameBits(Fp8Columns(cuda), Fp8Columns(part));
  }
}

// fp32 is rounded to bf16 first; scales at a boundary; partial tiles in both dimensions.
TEST_F(NativeFp8Cuda, WeightsAndTransposeEqualCpuBits) {
  for (const std::vector<int64_t>& shape : std::vector<std::vector<int64_t>>{
           {16, 16}, {48, 80}, {128, 128}, {144, 4096}, {4096, 272}, {32, 40960}}) {
    at::Tensor x = at::randn({shape[0], shape[1]}) * 0.02;
    x[1].clamp_(-0.5, 0.5)[3] = 448;
    x[2].clamp_(-0.5, 0.5)[3] = 450;
    x[3].mul_(1e-36);
    const Fp8 host = Fp8Weights(x), cuda = Fp8Weights(x.cuda());
    ExpectSameBits(cuda, host);
    ExpectSameBits(Fp8Transposed(cuda), Fp8Transposed(host));
  }
}

TEST_F(NativeFp8Cuda, NonFiniteValuesPropagate) {
  for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    at::Tensor x = Random(40, 64);
    x[5][9] = bad;
    const Fp8 rows = Fp8Rows(x.cuda()), columns = Fp8Columns(x.cuda());
    EXPECT_EQ(rows.scales.isfinite().sum().item<int64_t>(), 39);
    EXPECT_EQ(columns.scales.isfinite().sum().item<int64_t>(), 63);
    EXPECT_FALSE(rows.scales[5].isfinite().item<bool>());
    EXPECT_FALSE(columns.scales[9].isfinite().item<bool>());
    const Fp8 weights = Fp8Weights(x.cuda());
    EXPECT_EQ(weights.scales.isfinite().sum().item<int64_t>(), 39);
    EXPECT_FALSE(weights.scales[5].isfinite().item<bool>());
  }
}

TEST_F(NativeFp8Cuda, FusedNormEqualsSeparateRounding) {
  for (const std::vector<int64_t>& shape : std::vector<std::vector<int64_t>>{
           {0, 512}, {1, 512}, {7, 64}, {33, 4096}, {5, 8192}, {130, 1040}, {3, 9216}}) {
    const at::Tensor x = Random(shape[0], shape[1]).cuda(), weight = Random(1, shape[1]).cuda()[0];
    if (shape[0] > 3) {
      x[1].mul_(1e20);
      x[3].zero_();
    }
    const Fp8Normed got = Fp8RmsNormForward(x, weight, 1e-5);
    const Normed want = RmsNormForward(x, weight, 1e-5);
    EXPECT_TRUE(got.rstd.equal(want.rstd));
    ExpectSameBits(got.y, Fp8Rows(want.y.cpu()));
  }
}

TEST_F(NativeFp8Cuda, NormBackwardFindsColumnMaxima) {
  for (const std::vector<int64_t>& shape : std::vector<std::vector<int64_t>>{
           {1, 512}, {7, 64}, {601, 4096}, {33, 4096}, {5, 8192}, {130, 1040}, {3, 9216}}) {
    const at::Tensor x = Random(shape[0], shape[1]).cuda(), weight = Random(1, shape[1]).cuda()[0];
    if (shape[0] > 3) {
      x[1].mul_(1e20);
      x[2][5] = std::numeric_limits<float>::infinity();
      x[3].zero_();
    }
    const Normed normed = RmsNormForward(x, weight, 1e-5);
    const at::Tensor y = at::empty_like(x);
    at::Tensor largest;
    RmsNormBackward(at::ones_like(x), x, normed.rstd, weight, /*residual=*/{}, false, /*weight_grad_into=*/{},
                    y, &largest);
    EXPECT_EQ(largest.defined(), shape[1] > 256 && shape[1] <= 8192);
    ExpectSameBits(Fp8Columns(y, largest), Fp8Columns(y.cpu()));
  }
}

// Compared with the kernels it replaces; partial tiles and rows in both dimensions.
TEST_F(NativeFp8Cuda, FusedSwigluEqualsSeparateRounding) {
  for (const std::vector<int64_t>& shape : std::vector<std::vector<int64_t>>{
           {0, 16}, {1, 16}, {7, 48}, {130, 80}, {300, 304}, {257, 14336}, {3, 40960}}) {
    const at::Tensor gate_up = Random(shape[0], 2 * shape[1]).cuda(),
                     grad = Random(shape[0], shape[1]).cuda();
    if (shape[0] > 6) {
      gate_up[1].mul_(1e4);
      grad[2].mul_(1e30);
      grad[3].zero_();
      gate_up[4][5] = std::numeric_limits<float>::infinity();
      grad[6][7] = std::numeric_limits<float>::quiet_NaN();
    }
    const at::Tensor plain = gate_up.clone(), product = grad.clone();
    ExpectSameBits(Fp8SwigluForward(gate_up), Fp8Rows(SwigluForward(plain).cpu()));
    const at::Tensor scales = Fp8Weights(Random(2 * shape[1], 16)).scales;
    const Fp8SwigluGrads got = Fp8SwigluBackward(grad, gate_up, scales.cuda());
    SwigluBackward(product, plain);
    if (shape[0] == 0) continue;
    ExpectSameBits(got.gate_up, Fp8Rows(plain.cpu(), scales));
    ExpectSameBits(got.gate_up_columns, Fp8Columns(plain.cpu()));
    ExpectSameBits(got.product_columns, Fp8Columns(product.cpu()));
  }
}

// Through rows, weights, norms and SwiGLU, with rows larger than a thread's registers hold; a non-finite row,
// and elements at the boundary of being flushed.
TEST_F(NativeFp8Cuda, StatisticsEqualCpu) {
  for (const int64_t width : {int64_t{1024}, int64_t{48}, int64_t{40960}}) {
    at::Tensor x = Random(200, width);
    x[64].mul_(1e-9)[5] = 1;
    x[128].fill_(0x1p-10)[3] = 448;
    x[128][4] = 0x1.02p-10;
    x[77][9] = 1e4;  // The largest scale, in a row whose elements are not sampled.
    at::Tensor infinite = x.clone();
    infinite[192].fill_(std::numeric_limits<float>::infinity());
    const at::Tensor weight = Random(1, width)[0], powers = Fp8Weights(Random(width, 16)).scales;
    const at::Tensor gate_up = Random(200, 2 * width);
    const auto told = [&](at::Device device) {
      Fp8Watch watch(device);
      const Fp8Watch::Scope scope(&watch);
      const auto there = [&](const at::Tensor& of) { return of.to(device); };
      Fp8Rows(there(infinite));
      Fp8Rows(there(x), there(powers));
      Fp8Weights(there(x));
      // Uses the same bits, since the CPU's kernels would round differently.
      if (device.is_cuda()) {
        Fp8RmsNormForward(there(x), there(weight), 1e-5);
        Fp8SwigluForward(there(gate_up));
      } else {
        Fp8Rows(RmsNormForward(x.cuda(), weight.cuda(), 1e-5).y.cpu());
        Fp8Rows(SwigluForward(gate_up.cuda()).cpu());
      }
      return watch.Read().cpu();
    };
    const at::Tensor host = told(at::kCPU), cuda = told(at::kCUDA);
    EXPECT_TRUE(cuda.equal(host)) << cuda << host;
    EXPECT_GT(host[1].item<float>(), 0);
    EXPECT_GT(host[4 + 3].item<float>(), 1e4f / 512);
  }
}

class NativeFp8CudaProduct : public NativeFp8Cuda {
 protected:
  void SetUp() override {
    NativeFp8Cuda::SetUp();
    if (IsSkipped()) return;
    const absl::Status can = CheckMultipliesFp8(0);
    if (!can.ok()) GTEST_SKIP() << can;
  }
};

TEST_F(NativeFp8CudaProduct, IsNearCpuWithAndWithoutAddend) {
  for (const std::vector<int64_t>& shape : std::vector<std::vector<int64_t>>{
           {1, 16, 16}, {7, 48, 32}, {130, 80, 4096}, {512, 1024, 768}, {1024, 384, 208}}) {
    const Fp8 x = Fp8Rows(Random(shape[0], shape[2])), w = Fp8Rows(Random(shape[1], shape[2]));
    const Fp8 cuda_x = {x.values.cuda(), x.scales.cuda()}, cuda_w = {w.values.cuda(), w.scales.cuda()};
    for (const at::ScalarType type : {at::kBFloat16, at::kFloat}) {
      at::Tensor sum = at::randn({shape[0], shape[1]}).to(type);
      at::Tensor cuda_sum = sum.cuda(), cuda = at::full_like(cuda_sum, NAN), host = at::empty_like(sum);
      Fp8ProductInto(cuda_x, cuda_w, {}, cuda);
      Fp8ProductInto(x, w, {}, host);
      ExpectNear(cuda, host);
      Fp8ProductInto(cuda_x, cuda_w, cuda_sum, cuda_sum);
      Fp8ProductInto(x, w, sum, sum);
      ExpectNear(cuda_sum, sum);
    }
  }
}

TEST_F(NativeFp8CudaProduct, LinearLayerIsNearCpuInAllDirections) {
  const std::vector<int64_t> outputs = {64, 32, 32};
  for (const int64_t tokens : {16, 77}) {
    const at::Tensor x = Random(tokens, 48), grad = Random(tokens, 128), residual = Random(tokens, 64);
    for (const int64_t padding : {0, 16}) {
      const auto matrices = [&](const at::Tensor& flat) {
        Matrices found;
        int64_t begin = 0;
        for (const int64_t rows : outputs) {
          found.push_back(flat.narrow(0, begin, rows * 48).view({rows, 48}));
          begin += rows * 48 + padding;
        }
        return found;
      };
      const at::Tensor flat = at::randn({7000}).to(at::kBFloat16), cuda_flat = flat.cuda();
      const auto weights = [&](const Matrices& of) {
        std::vector<Fp8> found;
        for (const at::Tensor& matrix : of) found.push_back(Fp8Weights(matrix));
        return Transposed(found);
      };
      const Weights host = weights(matrices(flat)), cuda = weights(matrices(cuda_flat));
      at::Tensor y = at::empty({tokens, 128}, at::kBFloat16), cuda_y = y.cuda();
      LinearForwardInto(x, host, {}, y);
      LinearForwardInto(x.cuda(), cuda, {}, cuda_y);
      ExpectNear(cuda_y, y);
      const auto sum = [&](const at::Tensor& to, const at::Tensor& of, const Weights& with) {
        return AddLinear(to, of, std::vector<Fp8>{with.fp8.Part(0, 64)});
      };
      ExpectNear(sum(residual.cuda(), x.cuda(), cuda), sum(residual, x, host));
      at::Tensor dx = at::empty({tokens, 48}, at::kBFloat16), cuda_dx = dx.cuda();
      LinearBackwardInto(grad, host, dx);
      LinearBackwardInto(grad.cuda(), cuda, cuda_dx);
      ExpectNear(cuda_dx, dx);
      for (const at::ScalarType type : {at::kBFloat16, at::kFloat}) {
        const at::Tensor into = at::randn({7000}).to(type), cuda_into = into.cuda();
        for (const bool accumulate : {false, true}) {
          LinearGradsInto(grad, x, outputs, accumulate, matrices(into), {}, Operands::kFp8);
          LinearGradsInto(grad.cuda(), x.cuda(), outputs, accumulate, matrices(cuda_into), {},
                          Operands::kFp8);
          ExpectNear(cuda_into, into);
        }
      }
    }
  }
}

// Experts with few rows, none, and many; rows past the last end are not read.
TEST_F(NativeFp8CudaProduct, ExpertProductsAreNearCpu) {
  const std::vector<std::vector<int64_t>> counts = {
      {16}, {16, 32, 16, 400, 16, 16, 2048}, std::vector<int64_t>(130, 16), {1008, 16}};
  for (const std::vector<int64_t>& of : counts) {
    const at::Tensor ends = at::tensor(of).cumsum(0).to(at::kInt), cuda_ends = ends.cuda();
    const auto experts = static_cast<int64_t>(of.size());
    const int64_t end = ends[experts - 1].item<int64_t>(), capacity = end + 16 * experts;
    for (const auto& [inputs, outputs] : {std::pair(16, 16), std::pair(48, 80), std::pair(528, 272)}) {
      const auto rows_of = [&](int64_t width) {
        at::Tensor rows = Random(capacity, width);
        rows.narrow(0, end, capacity - end).fill_(std::numeric_limits<float>::quiet_NaN());
        rows.narrow(0, end - 5, 5).zero_();  // Padding.
        return rows;
      };
      const at::Tensor rows = rows_of(inputs), grad = rows_of(2 * outputs);
      std::vector<Fp8> host, cuda;
      for (int m = 0; m < 2; ++m) {
        std::vector<at::Tensor> values, scales;
        for (int64_t e = 0; e < experts; ++e) {
          const Fp8 weights = Fp8Weights(Random(outputs, inputs) * std::ldexp(0.02, static_cast<int>(e % 7)));
          values.push_back(weights.values.view(at::kByte));
          scales.push_back(weights.scales);
        }
        host.push_back({at::stack(values).view(at::kFloat8_e4m3fn), at::stack(scales)});
        cuda.push_back({host[m].values.cuda(), host[m].scales.cuda()});
      }
      const auto used = [end](const at::Tensor& x) { return x.narrow(0, 0, end); };
      ExpectNear(used(Fp8ExpertsForward(Fp8Rows(rows.cuda()), cuda_ends, cuda)),
                 used(Fp8ExpertsForward(Fp8Rows(rows), ends, host)));
      ExpectNear(used(Fp8ExpertsBackward(grad.cuda(), cuda_ends, cuda)),
                 used(Fp8ExpertsBackward(grad, ends, host)));
      for (const bool accumulate : {false, true}) {
        for (const at::ScalarType type : {at::kBFloat16, at::kFloat}) {
          const at::Tensor into = at::full({experts, outputs, inputs}, accumulate ? 1.0 : NAN, type);
          const at::Tensor on_cuda = into.cuda();
          Fp8ExpertsGradsInto(grad, rows, ends, outputs, accumulate, {at::Tensor(), into});
          Fp8ExpertsGradsInto(grad.cuda(), rows.cuda(), cuda_ends, outputs, accumulate,
                              {at::Tensor(), on_cuda});
          ExpectNear(on_cuda, into);
        }
      }
    }
  }
}

// Bitwise equal to copying the rows first, including padding rows.
TEST_F(NativeFp8CudaProduct, ExpertRowsByIndexEqualCopiedRows) {
  const std::vector<int64_t> counts = {16, 48, 1024, 16, 160};
  const at::Tensor ends = at::tensor(counts).cumsum(0).to(at::kInt).cuda();
  const int64_t end = ends[4].item<int>(), capacity = end + 48, tokens = 333, per_token = 4;
  for (const auto& [inputs, outputs] : {std::pair(48, 80), std::pair(528, 272)}) {
    const at::Tensor x = Random(tokens, inputs).cuda(), grad = Random(tokens, outputs).cuda();
    at::Tensor places = at::randint(-300, tokens * per_token, {capacity}, at::kInt).clamp_min(-1).cuda();
    places.narrow(0, 60, 20).fill_(-1);  // Including a sampled row, which is an expert's first.
    const Fp8 weights = Fp8Weights(Random(5 * outputs, inputs).cuda());
    const std::vector<Fp8> matrices = {
        {weights.values.view({5, outputs, inputs}), weights.scales.view({5, outputs})}};
    const auto copied = [&](const at::Tensor& of) { return GatherRows(of, places, per_token); };
    const ExpertRows x_rows(x, places, per_token), grad_rows(grad, places, per_token);
    const auto used = [end](const at::Tensor& of) { return of.narrow(0, 0, end); };
    Fp8Watch of_rows(at::kCUDA), of_copies(at::kCUDA);
    const auto backward = [&](const ExpertRows& grads, Fp8Watch* watch) {
      const Fp8Watch::Scope scope(watch);
      return used(Fp8ExpertsBackward(grads, ends, matrices));
    };
    EXPECT_TRUE(backward(grad_rows, &of_rows).equal(backward(copied(grad), &of_copies)));
    EXPECT_TRUE(of_rows.Read().equal(of_copies.Read())) << of_rows.Read() << of_copies.Read();
    const at::Tensor got = at::empty({5, outputs, inputs}, x.options()), want = at::empty_like(got);
    Fp8ExpertsGradsInto(grad_rows, x_rows, ends, outputs, /*accumulate=*/false, {got});
    Fp8ExpertsGradsInto(copied(grad), copied(x), ends, outputs, /*accumulate=*/false, {want});
    EXPECT_TRUE(got.equal(want));
  }
}

}  // namespace
}  // namespace fsdpd
