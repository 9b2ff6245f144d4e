#include "fsdp/profile/compute_rates.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros_like.h>
#include <absl/strings/str_cat.h>

#include <algorithm>
#include <memory>
#include <string>

#include "base/check.h"
#include "fsdp/model/native/native_attention.h"
#include "fsdp/model/native/native_fp8.h"
#include "fsdp/torch/cuda_device.h"
#include "fsdp/torch/scalar_type.h"

namespace fsdpd {
namespace {

// Verified rows and columns of a product: enough to detect a wrong layout or a stale result.
constexpr int64_t kCorner = 8;
// As in DeviceProfile: backward has five products, forward two.
constexpr double kBackwardWork = 2.5;
constexpr double kTolerance = 2e-2;  // For bf16.

double D(int64_t value) { return static_cast<double>(value); }

absl::Status Expect(bool right, const std::string& what) {
  return right ? absl::OkStatus() : absl::InternalError(absl::StrCat(what, ": wrong result"));
}

at::TensorOptions Options(const RankBench& rank, DType dtype) {
  return at::TensorOptions().dtype(ScalarTypeOf(dtype)).device(rank.device);
}

at::Tensor SmallIntegers(at::IntArrayRef shape, const at::TensorOptions& options) {
  return at::randint(-1, 2, shape, options);
}

struct Product {
  at::Tensor a, b, out;

  // Sums of small integers are exact in fp32, and rounded once.
  bool IsRight() const {
    const at::Tensor rows = a.narrow(0, 0, std::min(kCorner, a.size(0))).cpu().to(at::kFloat);
    const at::Tensor columns =
        b.narrow(1, b.size(1) - std::min(kCorner, b.size(1)), std::min(kCorner, b.size(1)));
    const at::Tensor expected = at::mm(rows, columns.cpu().to(at::kFloat)).to(out.scalar_type());
    return out.narrow(0, 0, rows.size(0))
        .narrow(1, b.size(1) - columns.size(1), columns.size(1))
        .cpu()
        .equal(expected);
  }
};

struct Fp8Product {
  Fp8 x, weight;
  at::Tensor out;

  void Run() const { Fp8ProductInto(x, weight, /*addend=*/{}, out); }

  bool IsRight() const {
    const auto first_rows = [](const Fp8& of) {
      const Fp8 part = of.Part(0, std::min(kCorner, of.values.size(0)));
      return part.values.cpu().to(at::kFloat) * part.scales.cpu().unsqueeze(1);
    };
    const at::Tensor expected = at::mm(first_rows(x), first_rows(weight).t());
    const at::Tensor corner = out.narrow(0, 0, expected.size(0)).narrow(1, 0, expected.size(1));
    return (corner.cpu().to(at::kFloat) - expected).norm().item<float>() <=
           kTolerance * expected.norm().item<float>();
  }
};

struct Attention {
  AttentionInput input;
  AttentionInput grads;
  AttentionOutput output;
  at::Tensor grad_out;

  void Forward() { output = AttentionForward(input, ChooseAttentionKernel(input)); }
  void Backward() { grads = AttentionBackward(grad_out, input, output); }

  // REQUIRES: q is zero, so each output row is the mean of the values so far; and grad_out is one, so the
  // gradient of the first value is the sum of its weights in these means: 1 + 1/2 + 1/3 + ...
  bool IsRight() const {
    const int64_t last = input.v.size(1) - 1;
    const at::Tensor values = input.v.to(at::kFloat);
    double shares = 0;
    for (int64_t row = 1; row <= last + 1; ++row) shares += 1 / D(row);
    const auto near = [](const at::Tensor& x, const at::Tensor& expected) {
      return (x.to(at::kFloat) - expected).abs().max().item<float>() < kTolerance;
    };
    return near(output.out.select(1, 0), values.select(1, 0)) &&
           near(output.out.select(1, last), values.mean(1)) &&
           near(grads.v.select(1, 0).to(at::kFloat) / shares, at::ones_like(values.select(1, 0)));
  }
};

// Of a work with this amount, per second.
absl::StatusOr<double> RateOf(RankBench* rank, const absl::StatusOr<Work>& work, double amount) {
  FSDPD_RETURN_IF_ERROR(work.status());
  FSDPD_ASSIGN_OR_RETURN(const double seconds, MedianSeconds(rank, rank->compute.get(), *work));
  return amount / seconds;
}

// On a CPU this tests correctness only; it has no fast FP8 product.
absl::StatusOr<double> MeasureFp8Product(RankBench* rank, const ComputeSizes& sizes) {
  if (!rank->device.is_cuda() || !CheckMultipliesFp8(rank->device.index()).ok()) return 0;
  rank->Begin("matrix products in FP8");
  return RateOf(rank, MakeFp8Product(rank, sizes), ProductFlops(sizes));
}

absl::StatusOr<std::shared_ptr<Attention>> MakeAttention(RankBench* rank, const ComputeSizes& sizes,
                                                         DType dtype) {
  const auto attention = std::make_shared<Attention>();
  FSDPD_RETURN_IF_ERROR(RunOn(rank->compute.get(), [&] {
    const at::NoGradGuard no_grad;
    AttentionInput& in = attention->input;
    in.q = at::randn({1, sizes.sequence, sizes.heads, sizes.head_size}, Options(*rank, dtype));
    in.k = at::randn(in.q.sizes(), in.q.options());
    in.v = at::randn(in.q.sizes(), in.q.options());
    attention->grad_out = at::ones_like(in.q);
    const at::Tensor random = in.q.clone();
    in.q.zero_();
    attention->Forward();
    attention->Backward();
    FSDPD_RETURN_IF_ERROR(Expect(attention->IsRight(), "attention"));
    in.q.copy_(random);  // All zeros would draw less power and run faster than any model.
    attention->grad_out.normal_();
    return absl::OkStatus();
  }));
  return attention;
}

struct AttentionSeconds {
  double forward = 0;
  double backward = 0;
};

absl::StatusOr<AttentionSeconds> TimeAttention(RankBench* rank, const ComputeSizes& sizes, DType dtype) {
  FSDPD_ASSIGN_OR_RETURN(const std::shared_ptr<Attention> attention, MakeAttention(rank, sizes, dtype));
  const auto seconds = [&](void (Attention::*direction)()) {
    return MedianSeconds(rank, rank->compute.get(), [attention, direction] {
      const at::NoGradGuard no_grad;
      (attention.get()->*direction)();
      return absl::OkStatus();
    });
  };
  AttentionSeconds all;
  FSDPD_ASSIGN_OR_RETURN(all.forward, seconds(&Attention::Forward));
  FSDPD_ASSIGN_OR_RETURN(all.backward, seconds(&Attention::Backward));
  return all;
}

// Solves for the overhead in time ~ n x (n + overhead), given two lengths, and clamps the result to the
// feasible range if noise puts it outside.
double OverheadTokens(double tokens, double seconds, double fewer, double seconds_of_fewer) {
  // (tokens + overhead) / (fewer + overhead).
  const double ratio = seconds / seconds_of_fewer * fewer / tokens;
  if (ratio <= 1) return fewer;
  return std::clamp((tokens - ratio * fewer) / (ratio - 1), 0.0, fewer);
}

absl::Status MeasureAttention(RankBench* rank, const ComputeSizes& sizes, DType dtype, DeviceProfile* rates) {
  ComputeSizes fewer = sizes;
  fewer.sequence = std::max<int64_t>(1, sizes.sequence / 4);
  FSDPD_ASSIGN_OR_RETURN(const AttentionSeconds of, TimeAttention(rank, sizes, dtype));
  FSDPD_ASSIGN_OR_RETURN(const AttentionSeconds of_fewer, TimeAttention(rank, fewer, dtype));
  const double overhead = OverheadTokens(D(sizes.sequence), of.forward + of.backward, D(fewer.sequence),
                                         of_fewer.forward + of_fewer.backward);
  // Two products of 2 FLOPs, of which causality needs half.
  const double flops =
      2 * D(sizes.sequence) * (D(sizes.sequence) + overhead) * D(sizes.heads * sizes.head_size);
  rates->attention_forward_flops = flops / of.forward;
  rates->attention_backward_flops = kBackwardWork * flops / of.backward;
  rates->attention_overhead_tokens = overhead;
  return absl::OkStatus();
}

}  // namespace

double TrafficBytes(int64_t elements) {
  constexpr int kPasses = 5;  // The copy reads and writes; the sum reads twice and writes.
  return kPasses * D(elements) * D(BytesOf(DType::kFp32));
}

absl::StatusOr<Work> MakeTraffic(RankBench* rank, int64_t elements) {
  at::Tensor x, y;
  FSDPD_RETURN_IF_ERROR(RunOn(rank->compute.get(), [&] {
    const at::NoGradGuard no_grad;
    x = SmallIntegers({elements}, Options(*rank, DType::kFp32));
    y = at::zeros_like(x);
    y.copy_(x).add_(x);
    return Expect(y.equal(x * 2), "copy and add");
  }));
  return Work([x, y]() mutable {
    const at::NoGradGuard no_grad;
    y.copy_(x).add_(x);
    return absl::OkStatus();
  });
}

double ProductFlops(const ComputeSizes& sizes) {
  return 2 * D(sizes.rows) * D(sizes.inner) * D(sizes.columns);
}

absl::StatusOr<Work> MakeProduct(RankBench* rank, const ComputeSizes& sizes, DType dtype) {
  const auto product = std::make_shared<Product>();
  FSDPD_RETURN_IF_ERROR(RunOn(rank->compute.get(), [&] {
    const at::NoGradGuard no_grad;
    const at::TensorOptions options = Options(*rank, dtype);
    product->a = SmallIntegers({sizes.rows, sizes.inner}, options);
    // Weights are [out x in]; the product uses their transpose.
    product->b = SmallIntegers({sizes.columns, sizes.inner}, options).t();
    product->out = at::empty({sizes.rows, sizes.columns}, options);
    at::mm_out(product->out, product->a, product->b);
    FSDPD_RETURN_IF_ERROR(Expect(product->IsRight(), absl::StrCat("product in ", NameOf(dtype))));
    product->a.normal_();
    product->b.normal_();
    return absl::OkStatus();
  }));
  return Work([product] {
    const at::NoGradGuard no_grad;
    at::mm_out(product->out, product->a, product->b);
    return absl::OkStatus();
  });
}

absl::StatusOr<Work> MakeFp8Product(RankBench* rank, const ComputeSizes& sizes) {
  const auto product = std::make_shared<Fp8Product>();
  FSDPD_RETURN_IF_ERROR(RunOn(rank->compute.get(), [&] {
    const at::NoGradGuard no_grad;
    const at::TensorOptions options = Options(*rank, DType::kBf16);
    product->x = Fp8Rows(at::randn({sizes.rows, sizes.inner}, options));
    product->weight = Fp8Rows(at::randn({sizes.columns, sizes.inner}, options));
    product->out = at::empty({sizes.rows, sizes.columns}, options);
    product->Run();
    return Expect(product->IsRight(), "product in fp8");
  }));
  return Work([product] {
    const at::NoGradGuard no_grad;
    product->Run();
    return absl::OkStatus();
  });
}

absl::Status MeasureCompute(RankBench* rank, const ComputeSizes& sizes, DType attention,
                            DeviceProfile* rates) {
  const double flops = ProductFlops(sizes);
  rank->Begin("matrix products in fp32");
  FSDPD_ASSIGN_OR_RETURN(rates->fp32_matmul_flops,
                         RateOf(rank, MakeProduct(rank, sizes, DType::kFp32), flops));
  rank->Begin("matrix products in bf16");
  FSDPD_ASSIGN_OR_RETURN(rates->half_matmul_flops,
                         RateOf(rank, MakeProduct(rank, sizes, DType::kBf16), flops));
  FSDPD_ASSIGN_OR_RETURN(rates->fp8_matmul_flops, MeasureFp8Product(rank, sizes));
  rank->Begin(absl::StrCat("attention in ", NameOf(attention)));
  FSDPD_RETURN_IF_ERROR(MeasureAttention(rank, sizes, attention, rates));
  rank->Begin("memory");
  FSDPD_ASSIGN_OR_RETURN(rates->memory_bytes_per_second,
                         RateOf(rank, MakeTraffic(rank, sizes.elements), TrafficBytes(sizes.elements)));
  return absl::OkStatus();
}

}  // namespace fsdpd
