#include "fsdp/model/native/native_heads.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/addcmul.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/outer.h>
#include <ATen/ops/pow.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "base/check.h"
#include "fsdp/kernels/attention/normed_heads.h"
#include "fsdp/kernels/attention/rotary.h"
#include "fsdp/model/native/native_ops.h"
#include "fsdp/torch/scalar_type.h"

namespace fsdpd {
namespace {

constexpr double kTwoPi = 6.283185307179586;

kernels::Stream StreamOf(const at::Tensor& x) { return kernels::CurrentStream(x.get_device()); }

// The fraction of each frequency that YaRN leaves unscaled: a linear ramp over the frequency index, between
// those that make high_freq_factor and low_freq_factor rotations within the original context length.
at::Tensor KeptByYarn(const LlamaConfig& config) {
  const RopeScaling& scaling = config.rope_scaling;
  const auto size = static_cast<double>(config.rotary_size());
  const auto number = [&](double turns) {
    const double wavelength = static_cast<double>(scaling.original_positions) / (turns * kTwoPi);
    return size * std::log(wavelength) / (2 * std::log(config.rope_theta));
  };
  const double first = std::max(0.0, std::floor(number(scaling.high_freq_factor)));
  const double last = std::min(size - 1, std::ceil(number(scaling.low_freq_factor)));
  const double between = first == last ? 0.001 : last - first;
  return 1 - at::arange(config.rotary_size() / 2, at::kFloat).sub(first).div(between).clamp(0, 1);
}

// [1 x half of the rotated part] fp32 on the CPU. Long wavelengths are divided by scaling.factor, short ones
// are unchanged. The unchanged fraction (`kept`) is linear in between: in the frequency, or for YaRN in its
// index.
at::Tensor Frequencies(const LlamaConfig& config) {
  const at::Tensor exponents =
      at::arange(0, config.rotary_size(), 2, at::kFloat).div(static_cast<double>(config.rotary_size()));
  const at::Tensor frequencies = at::pow(config.rope_theta, exponents).reciprocal();
  const RopeScaling& scaling = config.rope_scaling;
  if (scaling.factor == 1) return frequencies;
  if (scaling.yarn) {
    const at::Tensor saved = KeptByYarn(config);
    return frequencies * (saved + (1 - saved) / scaling.factor);
  }
  const at::Tensor turns = frequencies * (static_cast<double>(scaling.original_positions) / kTwoPi);
  const at::Tensor saved =
      ((turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)).clamp(0, 1);
  return frequencies * (saved + (1 - saved) / scaling.factor);
}

// The stride between tokens. The stride of a dimension of size one is meaningless.
int64_t RowOf(const at::Tensor& x) {
  FSDPD_CHECK(x.stride(3) == 1 && (x.size(2) == 1 || x.stride(2) == x.size(3)));
  if (x.size(1) == 1) return x.size(0) == 1 ? x.size(2) * x.size(3) : x.stride(0);
  FSDPD_CHECK(x.size(0) == 1 || x.stride(0) == x.size(1) * x.stride(1));
  return x.stride(1);
}

kernels::HeadRows HeadRowsOf(const at::Tensor& from, const at::Tensor& to) {
  return {from.const_data_ptr(), RowOf(from), to.data_ptr(), RowOf(to), static_cast<int>(from.size(2))};
}

// Kernel arguments for q and k of [micro_batch, sequence, heads, head_size].
kernels::HeadAngles AnglesOf(const Rotary& rotary, const at::Tensor& positions, const at::Tensor& q) {
  FSDPD_CHECK(positions.defined() || rotary.cos.size(0) == q.size(1));
  kernels::HeadAngles angles = {};
  angles.cos = rotary.cos.const_data_ptr<float>();
  angles.sin = rotary.sin.const_data_ptr<float>();
  if (positions.defined()) {
    FSDPD_CHECK(positions.is_cuda() && positions.is_contiguous());
    FSDPD_CHECK(positions.numel() == q.size(0) * q.size(1));
    angles.positions = positions.const_data_ptr<int64_t>();
  }
  angles.tokens = q.size(0) * q.size(1);
  angles.sequence = q.size(1);
  angles.half = static_cast<int>(q.size(3) / 2);
  angles.type = DTypeOf(q.scalar_type());
  return angles;
}

void RotateOnCuda(const Rotary& rotary, const at::Tensor& positions, float direction,
                  const QueriesAndKeys& from, const QueriesAndKeys& to) {
  kernels::Rotate({HeadRowsOf(from.q, to.q), HeadRowsOf(from.k, to.k), AnglesOf(rotary, positions, from.q)},
                  direction, StreamOf(from.q));
}

// Computes both halves in fp32 and rounds when writing; `to` may alias `from`.
void RotateOnCpu(const Rotary& angles, double direction, const at::Tensor& from, const at::Tensor& to) {
  const int64_t half = from.size(-1) / 2;
  const at::Tensor scaled = at::mul(from.unflatten(-1, {2, half}), angles.cos.unsqueeze(-2));
  const at::Tensor second = from.narrow(-1, half, half);
  at::Tensor first = from.narrow(-1, 0, half), to_first = to.narrow(-1, 0, half),
             to_second = to.narrow(-1, half, half);
  if (from.is_alias_of(to)) first = first.clone();  // The second half still reads it.
  at::addcmul_out(to_first, scaled.select(-2, 0), second, angles.sin, -direction);
  at::addcmul_out(to_second, scaled.select(-2, 1), first, angles.sin, direction);
}

// Table rows for each token: [micro_batch x sequence x 1 x half].
Rotary At(const Rotary& rotary, const at::Tensor& positions) {
  if (!positions.defined()) return rotary;
  const auto rows = [&](const at::Tensor& table) {
    return table.index_select(0, positions.flatten()).unflatten(0, positions.sizes());
  };
  return {rows(rotary.cos), rows(rotary.sin)};
}

void Rotate(const Rotary& rotary, const at::Tensor& positions, float direction, const QueriesAndKeys& from,
            const QueriesAndKeys& to) {
  if (from.q.is_cuda()) return RotateOnCuda(rotary, positions, direction, from, to);
  const Rotary angles = At(rotary, positions);
  RotateOnCpu(angles, direction, from.q, to.q);
  RotateOnCpu(angles, direction, from.k, to.k);
}

at::Tensor RstdOf(const at::Tensor& heads) {
  return at::empty({heads.size(0) * heads.size(1) * heads.size(2), 1}, heads.options().dtype(at::kFloat));
}

// Nullopt if the kernel does not support these heads.
std::optional<NormedHeads> NormAndRotateByKernel(const Rotary& rotary, const at::Tensor& positions,
                                                 const QueriesAndKeys& heads, const HeadNorms& norms) {
  const auto like = [](const at::Tensor& of) { return at::empty(of.sizes(), of.options()); };
  NormedHeads normed = {{like(heads.q), like(heads.k)}, RstdOf(heads.q), RstdOf(heads.k)};
  const auto of = [](const at::Tensor& from, const at::Tensor& to, const at::Tensor& weight,
                     const at::Tensor& rstd) {
    return kernels::NormedHeads{HeadRowsOf(from, to), weight.const_data_ptr(), rstd.data_ptr<float>()};
  };
  const kernels::NormedHeadsArgs args = {of(heads.q, normed.transposed.q, norms.q, normed.q_rstd),
                                         of(heads.k, normed.transposed.k, norms.k, normed.k_rstd),
                                         AnglesOf(rotary, positions, heads.q), norms.epsilon};
  if (!kernels::TakesNormedHeads(args)) return std::nullopt;
  kernels::NormedHeadsForward(args, StreamOf(heads.q));
  return normed;
}

bool NormAndRotateBackwardByKernel(const Rotary& rotary, const at::Tensor& positions,
                                   const QueriesAndKeys& grads, const NormedHeads& normed,
                                   const HeadNorms& norms, const HeadNormGrads& into,
                                   const QueriesAndKeys& heads) {
  kernels::NormedHeadsBackwardArgs args = {};
  args.angles = AnglesOf(rotary, positions, heads.q);
  args.accumulate = into.accumulate;
  at::Tensor parts[2];
  const auto of = [&](int number, const at::Tensor& grad, const at::Tensor& x, const at::Tensor& weight,
                      const at::Tensor& rstd, const at::Tensor& weight_grad) {
    kernels::NormedHeadsGrad one = {HeadRowsOf(grad, x),
                                    x.const_data_ptr(),
                                    weight.const_data_ptr(),
                                    rstd.const_data_ptr<float>(),
                                    nullptr,
                                    nullptr};
    if (!weight_grad.defined()) return one;
    parts[number] = at::empty({kernels::kNormedHeadsBlocks, x.size(3)}, rstd.options());
    one.parts = parts[number].data_ptr<float>();
    one.weight_grad = weight_grad.data_ptr();
    args.weight_grad = DTypeOf(weight_grad.scalar_type());
    return one;
  };
  FSDPD_CHECK(!into.q.defined() || !into.k.defined() || into.q.scalar_type() == into.k.scalar_type());
  args.q = of(0, grads.q, heads.q, norms.q, normed.q_rstd, into.q);
  args.k = of(1, grads.k, heads.k, norms.k, normed.k_rstd, into.k);
  if (!kernels::TakesNormedHeads(args)) return false;
  kernels::NormedHeadsBackward(args, StreamOf(heads.q));
  return true;
}

}  // namespace

Rotary MakeRotary(const LlamaConfig& config, int64_t sequence_length, at::Device device) {
  const at::Tensor angles =
      at::outer(at::arange(sequence_length, at::kFloat), Frequencies(config)).unsqueeze(1);
  const double scale = config.rope_scaling.RotatedScale();
  return {angles.cos().mul_(scale).to(device), angles.sin().mul_(scale).to(device)};
}

void RotateForward(const Rotary& rotary, const at::Tensor& positions, const QueriesAndKeys& heads) {
  Rotate(rotary, positions, 1, heads, heads);
}

void RotateBackward(const Rotary& rotary, const at::Tensor& positions, const QueriesAndKeys& grads,
                    const QueriesAndKeys& into) {
  Rotate(rotary, positions, -1, grads, into);
}

void RotatePart(const Rotary& rotary, const at::Tensor& positions, double direction, bool interleaved,
                const at::Tensor& part) {
  const Rotary angles = At(rotary, positions);
  const at::Tensor pairs =
      interleaved ? part.unflatten(-1, {-1, 2}).transpose(-1, -2) : part.unflatten(-1, {2, -1});
  const at::Tensor first = pairs.select(-2, 0), second = pairs.select(-2, 1);
  const at::Tensor transposed = at::mul(first, angles.cos).sub_(at::mul(second, angles.sin), direction);
  second.copy_(at::mul(second, angles.cos).add_(at::mul(first, angles.sin), direction));
  first.copy_(transposed);
}

NormedHeads NormAndRotate(const Rotary& rotary, const at::Tensor& positions, const QueriesAndKeys& heads,
                          const HeadNorms& norms) {
  if (heads.q.is_cuda()) {
    std::optional<NormedHeads> normed = NormAndRotateByKernel(rotary, positions, heads, norms);
    if (normed.has_value()) return *std::move(normed);
  }
  const auto norm = [&](const at::Tensor& of, const at::Tensor& weight) {
    return RmsNormForward(of.flatten(0, 2).contiguous(), weight, norms.epsilon);
  };
  const Normed q = norm(heads.q, norms.q), k = norm(heads.k, norms.k);
  NormedHeads normed = {{q.y.view(heads.q.sizes()), k.y.view(heads.k.sizes())}, q.rstd, k.rstd};
  RotateForward(rotary, positions, normed.transposed);
  return normed;
}

void NormAndRotateBackward(const Rotary& rotary, const at::Tensor& positions, const QueriesAndKeys& grads,
                           const NormedHeads& of, const HeadNorms& norms, const HeadNormGrads& into,
                           const QueriesAndKeys& heads) {
  if (heads.q.is_cuda() && NormAndRotateBackwardByKernel(rotary, positions, grads, of, norms, into, heads))
    return;
  RotateBackward(rotary, positions, grads, grads);
  const auto norm = [&](const at::Tensor& grad, const at::Tensor& x, const at::Tensor& rstd,
                        const at::Tensor& weight, const at::Tensor& weight_into) {
    x.copy_(RmsNormBackward(grad.flatten(0, 2), x.flatten(0, 2).contiguous(), rstd, weight, /*residual=*/{},
                            into.accumulate, weight_into)
                .view(x.sizes()));
  };
  norm(grads.q, heads.q, of.q_rstd, norms.q, into.q);
  norm(grads.k, heads.k, of.k_rstd, norms.k, into.k);
}

}  // namespace fsdpd
