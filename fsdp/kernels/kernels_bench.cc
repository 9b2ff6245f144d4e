// Benchmark of each kernel at the sizes of an 8B step (8192 tokens, bf16). Verifies it against the same
// mathematics in fp32, then times it on a hot GPU: milliseconds, minimum memory traffic over that time, and
// the ratio to the bandwidth of a copy on the same device in the same run. Needs a GPU:
//
//   bazel build --config=cuda //fsdp/kernels:kernels_bench && .build/bin/fsdp/kernels/kernels_bench
//
// Prints one line of JSON per kernel. Exits with 1 if a kernel's result is wrong.
#include <ATen/TensorOperators.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "fsdp/kernels/adamw_kernel.h"
#include "fsdp/kernels/add_product.h"
#include "fsdp/kernels/attention/normed_heads.h"
#include "fsdp/kernels/attention/rotary.h"
#include "fsdp/kernels/cross_entropy.h"
#include "fsdp/kernels/experts/expert_rows.h"
#include "fsdp/kernels/experts/grouped_product.h"
#include "fsdp/kernels/fp8.h"
#include "fsdp/kernels/fp8_swiglu.h"
#include "fsdp/kernels/rms_norm.h"
#include "fsdp/kernels/scaled_product.h"
#include "fsdp/kernels/sum_parts.h"
#include "fsdp/kernels/swiglu.h"

namespace fsdpd::kernels {
namespace {

constexpr int64_t kTokens = 8192, kHidden = 4096, kIntermediate = 14336, kVocabulary = 128256;
constexpr int64_t kLogitRows = 1024;         // One chunk of the language model head.
constexpr int64_t kShard = 218'112'000 / 4;  // Parameters of a layer on one of four ranks.
constexpr int kHeads = 32, kKvHeads = 8, kHalf = 64;
constexpr int kWarmUp = 30, kRounds = 50;

const at::TensorOptions kBf16 = at::TensorOptions(at::kCUDA).dtype(at::kBFloat16);
const at::TensorOptions kFp32 = at::TensorOptions(at::kCUDA).dtype(at::kFloat);

Stream CurrentStream() { return kernels::CurrentStream(0); }

at::Tensor Wide(const at::Tensor& x) { return x.to(at::kFloat); }

double Difference(const at::Tensor& got, const at::Tensor& want) {
  return ((Wide(got) - want).norm() / want.norm()).item<double>();
}

// The median time of kRounds runs, in milliseconds.
double Time(const std::function<void()>& run) {
  for (int i = 0; i < kWarmUp; ++i) run();
  std::vector<cudaEvent_t> marks(kRounds + 1);
  for (cudaEvent_t& mark : marks) cudaEventCreate(&mark);
  cudaEventRecord(marks[0], CurrentStream());
  for (int i = 0; i < kRounds; ++i) {
    run();
    cudaEventRecord(marks[i + 1], CurrentStream());
  }
  cudaDeviceSynchronize();
  std::vector<float> times(kRounds);
  for (int i = 0; i < kRounds; ++i) cudaEventElapsedTime(&times[i], marks[i], marks[i + 1]);
  for (cudaEvent_t mark : marks) cudaEventDestroy(mark);
  std::nth_element(times.begin(), times.begin() + kRounds / 2, times.end());
  return times[kRounds / 2];
}

class Bench {
 public:
  Bench() {
    const at::Tensor from = at::randn({1 << 29}, kBf16);
    at::Tensor to = at::empty_like(from);
    copy_rate_ = 2.0 * from.nbytes() / Time([&] { to.copy_(from); });
    std::printf("{\"kernel\": \"copy\", \"tb_per_second\": %.2f}\n", copy_rate_ / 1e9);
  }

  // `difference`: relative error of the kernel's result against fp32.
  void Measure(const std::string& kernel, double bytes, double difference, const std::function<void()>& run) {
    constexpr double kBound = 5e-3;  // bf16 rounds to 2^-9.
    const bool right = difference < kBound;
    ok_ = ok_ && right;
    const double milliseconds = right ? Time(run) : 0;
    std::printf(
        "{\"kernel\": \"%s\", \"difference\": %.2g, \"ms\": %.4f, \"tb_per_second\": %.2f, "
        "\"of_a_copy\": %.2f}\n",
        kernel.c_str(), difference, milliseconds, bytes / milliseconds / 1e9,
        bytes / milliseconds / copy_rate_);
    std::fflush(stdout);
  }

  bool ok() const { return ok_; }

 private:
  double copy_rate_ = 0;  // Bytes per millisecond.
  bool ok_ = true;
};

// The product after SwiGLU, timed next to LibTorch's addmm.
void BenchAddProduct(Bench* bench) {
  const at::Tensor x = at::randn({kTokens, kIntermediate}, kBf16),
                   weight = at::randn({kHidden, kIntermediate}, kBf16) * 0.02,
                   residual = at::randn({kTokens, kHidden}, kBf16), sum = at::empty_like(residual);
  const AddProductArgs args = {residual.data_ptr(), x.data_ptr(), weight.data_ptr(),
                               sum.data_ptr(),      kTokens,      kHidden,
                               kIntermediate,       DType::kBf16};
  const auto run = [&] { AddProduct(args, CurrentStream()); };
  run();
  const double bytes = static_cast<double>(x.nbytes() + weight.nbytes() + 2 * residual.nbytes());
  const double difference = Difference(sum, at::addmm(Wide(residual), Wide(x), Wide(weight).t()));
  bench->Measure("residual and product", bytes, difference, run);
  bench->Measure("LibTorch's addmm", bytes, difference, [&] { at::addmm(residual, x, weight.t()); });
}

// The product before SwiGLU, the largest of a layer.
void BenchUpProduct(Bench* bench) {
  const at::Tensor x = at::randn({kTokens, kHidden}, kBf16),
                   weight = at::randn({2 * kIntermediate, kHidden}, kBf16) * 0.02,
                   y = at::empty({kTokens, 2 * kIntermediate}, kBf16);
  const AddProductArgs args = {nullptr, x.data_ptr(),      weight.data_ptr(), y.data_ptr(),
                               kTokens, 2 * kIntermediate, kHidden,           DType::kBf16};
  const auto run = [&] { AddProduct(args, CurrentStream()); };
  run();
  const double bytes = static_cast<double>(x.nbytes() + weight.nbytes() + y.nbytes());
  const int64_t some = 64;
  const double difference =
      Difference(y.narrow(0, 0, some), at::mm(Wide(x.narrow(0, 0, some)), Wide(weight).t()));
  bench->Measure("gates and ups", bytes, difference, run);
  bench->Measure("LibTorch's mm", bytes, difference, [&] { at::mm(x, weight.t()); });
}

void BenchSwiglu(Bench* bench) {
  const at::Tensor gate_up = at::randn({kTokens, 2 * kIntermediate}, kBf16);
  const at::Tensor gate = gate_up.narrow(1, 0, kIntermediate),
                   up = gate_up.narrow(1, kIntermediate, kIntermediate);
  const at::Tensor grad = at::randn({kTokens, kIntermediate}, kBf16);
  at::Tensor product = at::empty_like(grad);
  const auto forward = [&] {
    SwigluForward(gate_up.data_ptr(), product.data_ptr(), kTokens, kIntermediate, DType::kBf16,
                  CurrentStream());
  };
  forward();
  const at::Tensor sigmoid = at::sigmoid(Wide(gate));
  const double bytes = static_cast<double>(grad.nbytes());
  bench->Measure("swiglu forward", 3 * bytes, Difference(product, Wide(gate) * sigmoid * Wide(up)), forward);
  const at::Tensor want = Wide(grad) * Wide(up) * sigmoid * (1 + Wide(gate) * (1 - sigmoid));
  const at::Tensor want_product = Wide(gate) * sigmoid * Wide(up);
  const auto backward = [&] {
    SwigluBackward(grad.data_ptr(), gate_up.data_ptr(), kTokens, kIntermediate, DType::kBf16,
                   CurrentStream());
  };
  backward();
  const double difference = std::max(Difference(gate, want), Difference(grad, want_product));
  bench->Measure("swiglu backward", 6 * bytes, difference, backward);
}

void BenchRotary(Bench* bench) {
  const at::Tensor q = at::randn({kTokens, kHeads, 2 * kHalf}, kBf16),
                   k = at::randn({kTokens, kKvHeads, 2 * kHalf}, kBf16);
  const at::Tensor angle = at::randn({kTokens, 1, kHalf}, kFp32), cos = angle.cos(), sin = angle.sin();
  const at::Tensor first = Wide(q).narrow(2, 0, kHalf), second = Wide(q).narrow(2, kHalf, kHalf);
  const at::Tensor want = first * cos - second * sin;
  const auto rows = [](const at::Tensor& x) {
    return HeadRows{x.data_ptr(), x.stride(0), x.data_ptr(), x.stride(0), static_cast<int>(x.size(1))};
  };
  const RotaryArgs args = {rows(q),
                           rows(k),
                           {cos.data_ptr<float>(), sin.data_ptr<float>(), /*positions=*/nullptr, kTokens,
                            kTokens, kHalf, DType::kBf16}};
  const auto run = [&] { Rotate(args, 1, CurrentStream()); };
  run();
  bench->Measure("rotary", 2.0 * (q.nbytes() + k.nbytes()), Difference(q.narrow(2, 0, kHalf), want), run);
}

// Reads queries and keys from the rows of a packed QKV product; the backward writes into it.
void BenchNormedHeads(Bench* bench) {
  constexpr int64_t kHead = 2 * kHalf, kAll = kHeads + 2 * kKvHeads;
  const at::Tensor qkv = at::randn({kTokens, kAll, kHead}, kBf16), into = at::empty_like(qkv);
  const at::Tensor weight = at::randn({kHead}, kBf16);
  const at::Tensor angle = at::randn({kTokens, 1, kHalf}, kFp32), cos = angle.cos(), sin = angle.sin();
  const HeadAngles angles = {cos.data_ptr<float>(), sin.data_ptr<float>(), nullptr, kTokens, kTokens, kHalf,
                             DType::kBf16};
  const at::Tensor q = qkv.narrow(1, 0, kHeads), k = qkv.narrow(1, kHeads, kKvHeads);
  const at::Tensor transposed_q = at::empty({kTokens, kHeads, kHead}, kBf16),
                   transposed_k = at::empty({kTokens, kKvHeads, kHead}, kBf16);
  const at::Tensor q_rstd = at::zeros({kTokens, kHeads, 1}, kFp32),
                   k_rstd = at::zeros({kTokens, kKvHeads, 1}, kFp32);
  const auto rows = [](const at::Tensor& from, const at::Tensor& to) {
    return HeadRows{from.data_ptr(), from.stride(0), to.data_ptr(), to.stride(0),
                    static_cast<int>(to.size(1))};
  };
  const NormedHeadsArgs args = {{rows(q, transposed_q), weight.data_ptr(), q_rstd.data_ptr<float>()},
                                {rows(k, transposed_k), weight.data_ptr(), k_rstd.data_ptr<float>()},
                                angles,
                                1e-5};
  const auto forward = [&] { NormedHeadsForward(args, CurrentStream()); };
  forward();
  const at::Tensor rstd = Wide(q).square().mean(-1, true).add(1e-5).rsqrt(), unit = Wide(q) * rstd;
  const at::Tensor normed = unit * Wide(weight);
  const at::Tensor want = normed.narrow(2, 0, kHalf) * cos - normed.narrow(2, kHalf, kHalf) * sin;
  const auto bytes = static_cast<double>(transposed_q.nbytes() + transposed_k.nbytes());
  bench->Measure("normed heads forward", 2 * bytes, Difference(transposed_q.narrow(2, 0, kHalf), want),
                 forward);

  const at::Tensor into_q = into.narrow(1, 0, kHeads), into_k = into.narrow(1, kHeads, kKvHeads);
  const at::Tensor of_q = at::zeros({kHead}, kFp32), of_k = at::zeros({kHead}, kFp32),
                   parts = at::empty({2, kNormedHeadsBlocks, kHead}, kFp32);
  const auto grad = [&](const at::Tensor& of, const at::Tensor& to, const at::Tensor& x,
                        const at::Tensor& of_rstd, int number, const at::Tensor& weight_grad) {
    return NormedHeadsGrad{rows(of, to),
                           x.data_ptr(),
                           weight.data_ptr(),
                           of_rstd.data_ptr<float>(),
                           parts[number].data_ptr<float>(),
                           weight_grad.data_ptr()};
  };
  const NormedHeadsBackwardArgs back = {grad(transposed_q, into_q, q, q_rstd, 0, of_q),
                                        grad(transposed_k, into_k, k, k_rstd, 1, of_k), angles, DType::kFp32,
                                        /*accumulate=*/false};
  const auto backward = [&] { NormedHeadsBackward(back, CurrentStream()); };
  backward();
  const at::Tensor f = Wide(transposed_q).narrow(2, 0, kHalf), s = Wide(transposed_q).narrow(2, kHalf, kHalf);
  const at::Tensor of_normed = at::cat({f * cos + s * sin, s * cos - f * sin}, 2),
                   of = of_normed * Wide(weight);
  const at::Tensor want_q = (of - unit * (of * unit).mean(-1, true)) * rstd;
  const double difference =
      std::max(Difference(into_q, want_q), Difference(of_q, (of_normed * unit).flatten(0, 1).sum(0)));
  bench->Measure("normed heads backward", 3 * bytes, difference, backward);
}

void BenchRmsNorm(Bench* bench, const std::string& name, int64_t rows, int64_t width) {
  const at::Tensor x = at::randn({rows, width}, kBf16), grad = at::randn_like(x), rest = at::randn_like(x);
  const at::Tensor weight = at::randn({width}, kBf16), y = at::empty_like(x);
  const at::Tensor want_rstd = Wide(x).square().mean(-1, true).add(1e-5).rsqrt(),
                   rstd = at::zeros_like(want_rstd);
  const auto forward = [&] {
    RmsNormForward({x.data_ptr(), weight.data_ptr(), y.data_ptr(), rstd.data_ptr<float>(), rows, width, 1e-5,
                    DType::kBf16},
                   CurrentStream());
  };
  forward();
  bench->Measure(name + " forward", 2.0 * x.nbytes(), Difference(y, Wide(x) * want_rstd * Wide(weight)),
                 forward);
  at::Tensor out = at::empty_like(x), again = at::empty_like(x), into = at::zeros({width}, kFp32);
  const at::Tensor parts = at::zeros({kRmsNormBlocks, width}, kFp32);
  const RmsNormBackwardArgs args = {grad.data_ptr(),
                                    x.data_ptr(),
                                    rstd.data_ptr<float>(),
                                    weight.data_ptr(),
                                    rest.data_ptr(),
                                    out.data_ptr(),
                                    again.data_ptr(),
                                    parts.data_ptr<float>(),
                                    into.data_ptr(),
                                    /*accumulate=*/false,
                                    rows,
                                    width,
                                    DType::kBf16,
                                    DType::kFp32};
  const auto run = [&] { RmsNormBackward(args, CurrentStream()); };
  run();
  const at::Tensor unit = Wide(x) * rstd, of = Wide(grad) * Wide(weight);
  const at::Tensor want = (of - unit * (of * unit).mean(-1, true)) * rstd + Wide(rest);
  const double difference = std::max(
      {Difference(out, want), Difference(into, (Wide(grad) * unit).sum(0)), again.equal(y) ? 0.0 : 1.0});
  bench->Measure(name + " backward", 5.0 * x.nbytes(), difference, run);
}

void BenchCrossEntropy(Bench* bench) {
  const at::Tensor logits = at::randn({kLogitRows, kVocabulary}, kBf16);
  const at::Tensor targets = at::randint(kVocabulary, {kLogitRows}, kFp32.dtype(at::kLong));
  const at::Tensor log_sum_exp = at::zeros({kLogitRows}, kFp32), losses = at::zeros({kLogitRows}, kFp32),
                   scale = at::full({}, 2.0f, kFp32);
  const CrossEntropyArgs args = {
      logits.data_ptr(), targets.data_ptr<int64_t>(), log_sum_exp.data_ptr<float>(), kLogitRows, kVocabulary,
      DType::kBf16};
  const auto forward = [&] { CrossEntropyForward(args, losses.data_ptr<float>(), CurrentStream()); };
  forward();
  const at::Tensor log_softmax = at::log_softmax(Wide(logits), -1);
  const at::Tensor want = -log_softmax.gather(1, targets.unsqueeze(1)).squeeze(1);
  const double bytes = static_cast<double>(logits.nbytes());
  bench->Measure("cross-entropy forward", bytes, Difference(losses, want), forward);
  const auto backward = [&] { CrossEntropyBackward(args, scale.data_ptr<float>(), CurrentStream()); };
  backward();
  at::Tensor want_grad = log_softmax.exp();
  want_grad.scatter_add_(1, targets.unsqueeze(1), at::full({kLogitRows, 1}, -1.0f, kFp32));
  bench->Measure("cross-entropy backward", 2 * bytes, Difference(logits, want_grad.mul_(2)), backward);
}

// With FP8 moments and bf16 gradients in split fp32, as an 8B job on one GPU stores them.
void BenchAdamWFp8(AdamWArgs args, Bench* bench) {
  const at::Tensor high = at::randn({kShard}, kBf16), low = at::zeros({kShard}, kBf16),
                   grad = at::randn({kShard}, kBf16), m = at::zeros({kShard}, kFp32.dtype(at::kByte)),
                   v = at::zeros_like(m);
  const at::Tensor want = Wide(high) * (1 - 0.01 * 0.1) - 0.01 * Wide(grad) / (Wide(grad).abs() + 1e-8);
  args.high = static_cast<uint16_t*>(high.data_ptr());
  args.low = static_cast<uint16_t*>(low.data_ptr());
  args.grad = grad.data_ptr();
  args.exp_avg = m.data_ptr();
  args.exp_avg_sq = v.data_ptr();
  args.grad_type = DType::kBf16;
  args.moment_type = DType::kFp8;
  const auto run = [&] { AdamWUpdate(args, CurrentStream()); };
  run();
  const auto bytes = static_cast<double>(2 * (high.nbytes() + low.nbytes() + m.nbytes() + v.nbytes()));
  bench->Measure("adamw with split fp32, fp8 moments", bytes + static_cast<double>(grad.nbytes()),
                 Difference(high, want), run);
}

void BenchAdamW(Bench* bench) {
  const at::Tensor param = at::randn({kShard}, kFp32), grad = at::randn({kShard}, kFp32),
                   m = at::zeros({kShard}, kFp32), v = at::zeros({kShard}, kFp32);
  const at::Tensor one = at::full({}, 1.0f, kFp32), zero = at::full({}, 0.0f, kFp32);
  const at::Tensor rate = at::full({}, 0.01, kFp32.dtype(at::kDouble));
  // After the first step m / (1 - b1) is the gradient and v / (1 - b2) its square.
  const at::Tensor want = param * (1 - 0.01 * 0.1) - 0.01 * grad / (grad.abs() + 1e-8);
  AdamWArgs args = {param.data_ptr<float>(),
                    nullptr,
                    nullptr,
                    grad.data_ptr(),
                    m.data_ptr(),
                    v.data_ptr(),
                    rate.data_ptr<double>(),
                    one.data_ptr<float>(),
                    zero.data_ptr<float>(),
                    one.data_ptr<float>(),
                    kShard,
                    /*lr_scale=*/1,
                    /*beta1=*/0.9,
                    /*beta2=*/0.95,
                    /*eps=*/1e-8,
                    /*weight_decay=*/0.1,
                    DType::kFp32,
                    DType::kFp32};
  const auto run = [&] { AdamWUpdate(args, CurrentStream()); };
  run();
  bench->Measure("adamw", 7.0 * param.nbytes(), Difference(param, want), run);
  const at::Tensor high = at::randn({kShard}, kBf16),
                   low = at::zeros({kShard}, kBf16);  // Holds 16-bit words, not bf16 numbers.
  const at::Tensor want_high = Wide(high) * (1 - 0.01 * 0.1) - 0.01 * grad / (grad.abs() + 1e-8);
  args.param = nullptr;
  args.high = static_cast<uint16_t*>(high.data_ptr());
  args.low = static_cast<uint16_t*>(low.data_ptr());
  m.zero_();
  v.zero_();
  run();
  bench->Measure("adamw with split fp32", 7.0 * param.nbytes(), Difference(high, want_high), run);
  BenchAdamWFp8(args, bench);
}

void BenchSumParts(Bench* bench) {
  const at::Tensor parts = at::randn({4, kShard}, kBf16), sum = at::zeros({kShard}, kFp32);
  const at::Tensor want = Wide(parts).sum(0), squares = at::zeros({SquaresOf(kShard)}, kFp32);
  const auto bytes = static_cast<double>(parts.nbytes() + sum.nbytes());
  SumPartsArgs args = {};
  args.parts = parts.data_ptr();
  args.sum = sum.data_ptr();
  args.count = kShard;
  args.ranks = 4;
  args.type = DType::kBf16;
  args.sum_type = DType::kFp32;
  const auto run = [&] { SumParts(args, CurrentStream()); };
  run();
  bench->Measure("sum of 4 parts", bytes, Difference(sum, want), run);
  args.squares = squares.data_ptr<float>();
  run();
  const double difference = std::max(Difference(sum, want), Difference(squares.sum(), want.square().sum()));
  bench->Measure("sum of 4 parts with squares", bytes, difference, run);
  args.addend = args.sum;
  sum.copy_(want);
  run();
  bench->Measure("sum of 4 parts added with squares", bytes + static_cast<double>(sum.nbytes()),
                 Difference(sum, want * 2), run);
}

// Timed next to LibTorch's dense product of as many rows. Row `row` belongs to expert `expert`.
void BenchGroupedProducts(const at::Tensor& rows, const at::Tensor& ends, int64_t expert, int64_t row,
                          Bench* bench) {
  constexpr int64_t kWidth = 768;
  const int64_t inputs = rows.size(1), experts = ends.size(0);
  const at::Tensor matrix = at::randn({experts, kWidth, inputs}, kBf16),
                   y = at::zeros({rows.size(0), kWidth}, kBf16);
  const GroupedProductArgs args = {rows.data_ptr(),
                                   y.data_ptr(),
                                   matrix.data_ptr(),
                                   ends.data_ptr<int32_t>(),
                                   inputs,
                                   kWidth,
                                   rows.size(0),
                                   inputs,
                                   kWidth,
                                   static_cast<int>(experts),
                                   DType::kBf16};
  const auto moved = static_cast<double>(rows.nbytes() + y.nbytes() + matrix.nbytes());
  const auto product = [&](GroupedForm form) { GroupedProduct(form, args, CurrentStream()); };
  product(GroupedForm::kForward);
  const double off =
      Difference(y[row], at::mm(Wide(matrix[expert]), Wide(rows[row]).unsqueeze(1)).squeeze(1));
  bench->Measure("grouped product forward", moved, off, [&] { product(GroupedForm::kForward); });
  const at::Tensor dense = at::randn({kWidth, inputs}, kBf16);
  bench->Measure("LibTorch's dense product", moved, off, [&] { at::mm(rows, dense.t()); });
  bench->Measure("grouped product backward", moved, off, [&] { product(GroupedForm::kBackward); });
  bench->Measure("grouped product of weights", moved, off, [&] { product(GroupedForm::kWeights); });
}

// Qwen3-30B-A3B: 8192 tokens, each routed evenly to 8 of 128 experts.
void BenchExperts(Bench* bench) {
  constexpr int64_t kExperts = 128, kPerToken = 8, kInner = 2048;
  constexpr int64_t kChoices = kTokens * kPerToken, kRows = kChoices + kExperts * kGroupedStep;
  const auto ints = kFp32.dtype(at::kInt);
  const at::Tensor chosen = at::randint(kExperts, {kChoices}, kFp32.dtype(at::kLong));
  const at::Tensor order = at::zeros({kRows}, ints), of_choice = at::zeros({kChoices}, ints),
                   ends = at::zeros({kExperts}, ints),
                   counts = at::zeros({PlaceRowsBlocks(kChoices), kExperts}, ints);
  PlaceRowsArgs place = {};
  place.chosen = chosen.data_ptr<int64_t>();
  place.order = order.data_ptr<int32_t>();
  place.of_choice = of_choice.data_ptr<int32_t>();
  place.ends = ends.data_ptr<int32_t>();
  place.counts = counts.data_ptr<int32_t>();
  place.choices = kChoices;
  place.rows = kRows;
  place.experts = kExperts;
  place.step = kGroupedStep;
  const auto run = [&] { PlaceRows(place, CurrentStream()); };
  run();
  const at::Tensor found = order.index_select(0, of_choice) - at::arange(kChoices, ints);
  bench->Measure("places of rows", static_cast<double>(chosen.nbytes() + order.nbytes() + of_choice.nbytes()),
                 found.abs().max().item<double>(), run);

  const at::Tensor tokens = at::randn({kTokens, kInner}, kBf16), rows = at::empty({kRows, kInner}, kBf16);
  const GatherRowsArgs gather = {tokens.data_ptr(),
                                 order.data_ptr<int32_t>(),
                                 rows.data_ptr(),
                                 /*used=*/nullptr,
                                 kRows,
                                 kInner,
                                 kPerToken,
                                 DType::kBf16};
  const auto gathered = [&] { GatherRows(gather, CurrentStream()); };
  gathered();
  const at::Tensor sum = at::zeros({kTokens, kInner}, kBf16);
  const SumRowsArgs add = {rows.data_ptr(), /*second=*/nullptr, of_choice.data_ptr<int32_t>(),
                           nullptr,         sum.data_ptr(),     kTokens,
                           kInner,          kPerToken,          DType::kBf16,
                           DType::kBf16};
  const auto added = [&] { SumRows(add, CurrentStream()); };
  added();
  const double difference = Difference(sum, Wide(tokens) * kPerToken);
  bench->Measure("gathered rows", 2.0 * rows.nbytes(), difference, gathered);
  bench->Measure("sums of rows", static_cast<double>(rows.nbytes() + sum.nbytes()), difference, added);
  BenchGroupedProducts(rows, ends, chosen[0].item<int64_t>(), of_choice[0].item<int64_t>(), bench);
}

struct Fp8Matrix {
  at::Tensor values;
  at::Tensor scales;

  at::Tensor Exact() const { return Wide(values) * scales.unsqueeze(1); }
};

// Reference: LibTorch's cast, by rows of x.
at::Tensor RoundedAsExact(const at::Tensor& x) {
  const at::Tensor largest = Wide(x).abs().amax({1}, /*keepdim=*/true);
  const at::Tensor factor = at::full_like(largest, 448.0f) / largest;
  return Wide((Wide(x) * factor).to(at::kFloat8_e4m3fn)) * (largest / 448.0f);
}

Fp8Matrix BenchFp8Rows(Bench* bench, const std::string& name, const at::Tensor& x) {
  const int64_t rows = x.size(0), width = x.size(1);
  Fp8Matrix to = {at::empty({rows, width}, kFp32.dtype(at::kFloat8_e4m3fn)), at::empty({rows}, kFp32)};
  const Fp8RowsArgs args = {
      x.data_ptr(), rows, width, width, to.values.data_ptr(), to.scales.data_ptr<float>()};
  const auto run = [&] { Fp8Rows(args, CurrentStream()); };
  run();
  const auto bytes = static_cast<double>(x.nbytes() + to.values.nbytes());
  bench->Measure("fp8 rows of " + name, bytes, Difference(to.Exact(), RoundedAsExact(x)), run);
  const at::Tensor seen = at::tensor({int64_t{0}, int64_t{0}, int64_t{0x7f800000}, int64_t{0}}).cuda();
  Fp8RowsArgs watched = args;
  watched.seen = static_cast<Fp8Statistics*>(seen.data_ptr());
  const auto run_watched = [&] { Fp8Rows(watched, CurrentStream()); };
  run_watched();
  bench->Measure("fp8 rows of " + name + ", with telemetry", bytes, Difference(to.Exact(), RoundedAsExact(x)),
                 run_watched);
  return to;
}

void BenchFp8Columns(Bench* bench, const std::string& name, const at::Tensor& x) {
  const int64_t rows = x.size(0), width = x.size(1);
  Fp8Matrix to = {at::empty({width, rows}, kFp32.dtype(at::kFloat8_e4m3fn)), at::empty({width}, kFp32)};
  const at::Tensor largest = at::empty({width}, kFp32.dtype(at::kInt));
  const Fp8ColumnsArgs args = {x.data_ptr(),
                               rows,
                               width,
                               width,
                               to.values.data_ptr(),
                               rows,
                               to.scales.data_ptr<float>(),
                               reinterpret_cast<uint32_t*>(largest.data_ptr<int32_t>())};
  const auto run = [&] { Fp8Columns(args, CurrentStream()); };
  run();
  const auto bytes = static_cast<double>(2 * x.nbytes() + to.values.nbytes());
  bench->Measure("fp8 columns of " + name, bytes, Difference(to.Exact(), RoundedAsExact(x.t())), run);
}

// A power-of-two scale may be up to twice LibTorch's, so the transposed weight is compared with the quantized
// rows.
Fp8Matrix BenchFp8Weights(Bench* bench, const at::Tensor& x) {
  const int64_t rows = x.size(0), width = x.size(1);
  Fp8Matrix to = {at::empty({rows, width}, kFp32.dtype(at::kFloat8_e4m3fn)), at::empty({rows}, kFp32)},
            transposed = {at::empty({width, rows}, kFp32.dtype(at::kFloat8_e4m3fn)),
                          at::empty({width}, kFp32)};
  const Fp8WeightsArgs args = {x.data_ptr(), DType::kBf16,         rows,
                               width,        to.values.data_ptr(), to.scales.data_ptr<float>()};
  const Fp8TransposeArgs turn = {to.values.data_ptr(),
                                 rows,
                                 width,
                                 transposed.values.data_ptr(),
                                 transposed.scales.data_ptr<float>(),
                                 rows};
  const auto run = [&] { Fp8Weights(args, CurrentStream()); };
  const auto run_turn = [&] { Fp8Transpose(turn, CurrentStream()); };
  run();
  run_turn();
  const at::Tensor scales = (Wide(x).abs().amax({1}, /*keepdim=*/true) / 448).log2().ceil().exp2();
  const at::Tensor want = Wide((Wide(x) / scales).to(at::kFloat8_e4m3fn)) * scales;
  const auto bytes = static_cast<double>(x.nbytes() + to.values.nbytes());
  bench->Measure("fp8 weights", bytes, Difference(to.Exact(), want), run);
  bench->Measure("fp8 weights turned", 2 * static_cast<double>(to.values.nbytes()),
                 Difference(transposed.Exact(), Wide(to.values).t()), run_turn);
  return to;
}

// Gate and up of a layer, timed next to LibTorch's bf16 product.
void BenchFp8(Bench* bench) {
  constexpr int64_t kGateUp = 2 * kIntermediate;
  const at::Tensor x = at::randn({kTokens, kHidden}, kBf16), grad = at::randn({kTokens, kGateUp}, kBf16),
                   weight = at::randn({kGateUp, kHidden}, kBf16) * 0.02;
  const Fp8Matrix of_x = BenchFp8Rows(bench, "4096", x);
  BenchFp8Rows(bench, "28672", grad);
  BenchFp8Columns(bench, "4096", x);
  BenchFp8Columns(bench, "28672", grad);
  const Fp8Matrix of_weight = BenchFp8Weights(bench, weight);
  const at::Tensor y = at::empty({kTokens, kGateUp}, kBf16);
  const ScaledProductArgs args = {of_x.values.data_ptr(),
                                  of_x.scales.data_ptr<float>(),
                                  of_weight.values.data_ptr(),
                                  of_weight.scales.data_ptr<float>(),
                                  /*addend=*/nullptr,
                                  y.data_ptr(),
                                  kTokens,
                                  kGateUp,
                                  kHidden,
                                  kGateUp,
                                  DType::kBf16};
  const auto run = [&] { ScaledProduct(args, CurrentStream()); };
  run();
  const double difference = Difference(y, at::mm(of_x.Exact(), of_weight.Exact().t()));
  const auto bytes = static_cast<double>(x.nbytes() + weight.nbytes()) / 2 + static_cast<double>(y.nbytes());
  bench->Measure("fp8 product", bytes, difference, run);
  bench->Measure("LibTorch's in bf16", bytes, difference, [&] { at::mm(x, weight.t()); });
}

// SwiGLU that writes FP8, at the size of an 8B layer, compared with quantizing its bf16 output.
void BenchFp8Swiglu(Bench* bench) {
  const int64_t rows = kTokens, width = kIntermediate;
  const auto fp8 = [](int64_t of, int64_t wide) {
    return Fp8Matrix{at::empty({of, wide}, kFp32.dtype(at::kFloat8_e4m3fn)), at::empty({of}, kFp32)};
  };
  const at::Tensor gate_up = at::randn({rows, 2 * width}, kBf16), grad = at::randn({rows, width}, kBf16);
  const Fp8Matrix product = fp8(rows, width), grads = fp8(rows, 2 * width), transposed = fp8(2 * width, rows),
                  transposed_product = fp8(width, rows);
  const at::Tensor largest = at::empty({rows + 3 * width}, kFp32.dtype(at::kInt));
  const Fp8SwigluArgs args = {gate_up.data_ptr(), rows, width, product.values.data_ptr(),
                              product.scales.data_ptr<float>()};
  const at::Tensor powers = at::full({2 * width}, 0.25, kFp32);
  const Fp8SwigluBackwardArgs back = {grad.data_ptr(),
                                      gate_up.data_ptr(),
                                      powers.data_ptr<float>(),
                                      rows,
                                      width,
                                      rows,
                                      grads.values.data_ptr(),
                                      grads.scales.data_ptr<float>(),
                                      transposed.values.data_ptr(),
                                      transposed.scales.data_ptr<float>(),
                                      transposed_product.values.data_ptr(),
                                      transposed_product.scales.data_ptr<float>(),
                                      reinterpret_cast<uint32_t*>(largest.data_ptr<int32_t>())};
  const auto forward = [&] { Fp8SwigluForward(args, CurrentStream()); };
  const auto backward = [&] { Fp8SwigluBackward(back, CurrentStream()); };
  forward();
  backward();
  at::Tensor plain = gate_up.clone(), plain_product = at::empty_like(grad);
  SwigluForward(plain.data_ptr(), plain_product.data_ptr(), rows, width, DType::kBf16, CurrentStream());
  const double off = Difference(product.Exact(), RoundedAsExact(plain_product));
  plain_product.copy_(grad);
  SwigluBackward(plain_product.data_ptr(), plain.data_ptr(), rows, width, DType::kBf16, CurrentStream());
  const double off_back =
      std::max({Difference(grads.Exact() * 4, RoundedAsExact(plain)),
                Difference(transposed.Exact(), RoundedAsExact(plain.t())),
                Difference(transposed_product.Exact(), RoundedAsExact(plain_product.t()))});
  const double numbers = static_cast<double>(rows) * static_cast<double>(width);
  bench->Measure("fp8 swiglu forward", 5 * numbers, off, forward);
  bench->Measure("fp8 swiglu backward", 17 * numbers, off_back, backward);
}

int Run() {
  Bench bench;
  BenchAddProduct(&bench);
  BenchUpProduct(&bench);
  BenchSwiglu(&bench);
  BenchRotary(&bench);
  BenchRmsNorm(&bench, "rms norm", kTokens, kHidden);
  BenchNormedHeads(&bench);
  BenchCrossEntropy(&bench);
  BenchAdamW(&bench);
  BenchSumParts(&bench);
  BenchExperts(&bench);
  BenchFp8(&bench);
  BenchFp8Swiglu(&bench);
  return bench.ok() ? 0 : 1;
}

}  // namespace
}  // namespace fsdpd::kernels

int main() { return fsdpd::kernels::Run(); }
