#include "fsdp/model/native_ops.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_fused_rms_norm.h>
#include <ATen/ops/_fused_rms_norm_backward.h>
#include <ATen/ops/addcmul.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/outer.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/silu_backward.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>

#include <utility>

#include "fsdp/model/unit.h"

namespace fsdpd {
namespace {

constexpr double kTwoPi = 6.283185307179586;

// [1 x head_size / 2] fp32 on the CPU. Long wavelengths are stretched by scaling.factor, short ones stay, and
// `kept`, the share that stays, is linear in the frequency between the two.
at::Tensor Frequencies(const LlamaConfig& config) {
  const at::Tensor exponents =
      at::arange(0, config.head_size, 2, at::kFloat).div(static_cast<double>(config.head_size));
  const at::Tensor frequencies = at::pow(config.rope_theta, exponents).reciprocal();
  const RopeScaling& scaling = config.rope_scaling;
  if (scaling.factor == 1) return frequencies;
  const at::Tensor turns = frequencies * (static_cast<double>(scaling.original_positions) / kTwoPi);
  const at::Tensor kept =
      ((turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)).clamp(0, 1);
  return frequencies * (kept + (1 - kept) / scaling.factor);
}

// Turns each pair by `direction` times its angle. Both halves are computed in fp32 and rounded as they are
// written.
at::Tensor Rotate(const at::Tensor& x, const Rotary& rotary, double direction) {
  const int64_t half = x.size(-1) / 2;
  const at::Tensor scaled = at::mul(x.unflatten(-1, {2, half}), rotary.cos.unsqueeze(1));
  at::Tensor y = at::empty_like(x);
  at::Tensor y1 = y.narrow(-1, 0, half), y2 = y.narrow(-1, half, half);
  at::addcmul_out(y1, scaled.select(-2, 0), x.narrow(-1, half, half), rotary.sin, -direction);
  at::addcmul_out(y2, scaled.select(-2, 1), x.narrow(-1, 0, half), rotary.sin, direction);
  return y;
}

}  // namespace

void GradInto(const at::Tensor& grad, bool accumulate, const at::Tensor& into) {
  if (!into.defined()) return;
  if (accumulate) {
    into.add_(grad);
  } else {
    into.copy_(grad);
  }
}

void WeightGradInto(const at::Tensor& grad_out, const at::Tensor& x, bool accumulate,
                    const at::Tensor& into) {
  if (!into.defined()) return;
  const at::Tensor left = grad_out.t();
  at::Tensor out = into;
  if (into.scalar_type() == x.scalar_type()) {
    accumulate ? at::addmm_out(out, out, left, x) : at::mm_out(out, left, x);
  } else if (into.is_cuda() && into.scalar_type() == at::kFloat) {
    accumulate ? at::addmm_out(out, out, left, x, at::kFloat) : at::mm_out(out, left, x, at::kFloat);
  } else {
    GradInto(at::mm(left, x), accumulate, into);
  }
}

void BiasGradInto(const at::Tensor& grad_out, bool accumulate, const at::Tensor& into) {
  if (into.defined()) GradInto(at::sum(grad_out, {0}, /*keepdim=*/false, at::kFloat), accumulate, into);
}

void EmbeddingGradInto(const at::Tensor& grad, const at::Tensor& tokens, bool accumulate,
                       const at::Tensor& into) {
  if (!into.defined()) return;
  if (!accumulate) into.zero_();
  if (into.is_cuda()) {
    // Sorts the tokens and adds each one's rows in order, where index_add_ would add in any order.
    into.index_put_({tokens}, grad.to(into.scalar_type()), /*accumulate=*/true);
  } else if (into.scalar_type() == at::kFloat) {
    into.index_add_(0, tokens, grad.to(at::kFloat));
  } else {
    into.add_(at::zeros(into.sizes(), at::kFloat).index_add_(0, tokens, grad.to(at::kFloat)));
  }
}

Normed RmsNormForward(const at::Tensor& x, const at::Tensor& weight, double epsilon) {
  if (x.is_cuda()) {
    auto [y, rstd] = at::_fused_rms_norm(x, weight.sizes(), weight, epsilon);
    return {std::move(y), std::move(rstd)};
  }
  const at::Tensor wide = x.to(at::kFloat);
  at::Tensor rstd = wide.square().mean(-1, /*keepdim=*/true).add_(epsilon).rsqrt_();
  return {at::mul(wide, rstd).mul_(weight).to(x.scalar_type()), std::move(rstd)};
}

at::Tensor RmsNormBackward(const at::Tensor& grad_y, const at::Tensor& x, const at::Tensor& rstd,
                           const at::Tensor& weight, bool accumulate, const at::Tensor& weight_grad_into) {
  if (x.is_cuda()) {
    auto [grad_x, grad_weight] = at::_fused_rms_norm_backward(grad_y, x, weight.sizes(), rstd, weight,
                                                              {true, weight_grad_into.defined()});
    GradInto(grad_weight, accumulate, weight_grad_into);
    return grad_x;
  }
  const at::Tensor wide_grad = grad_y.to(at::kFloat);
  const at::Tensor unit = x.to(at::kFloat) * rstd;  // x / rms(x)
  if (weight_grad_into.defined()) {
    GradInto(at::sum(wide_grad * unit, {0}), accumulate, weight_grad_into);
  }
  at::Tensor grad_unit = wide_grad * weight;
  const at::Tensor radial = (grad_unit * unit).mean(-1, /*keepdim=*/true);
  return grad_unit.addcmul_(unit, radial, -1).mul_(rstd).to(x.scalar_type());
}

Rotary MakeRotary(const LlamaConfig& config, int64_t sequence_length, at::Device device) {
  const at::Tensor angles =
      at::outer(at::arange(sequence_length, at::kFloat), Frequencies(config)).unsqueeze(1);
  return {angles.cos().to(device), angles.sin().to(device)};
}

at::Tensor RotateForward(const at::Tensor& x, const Rotary& rotary) { return Rotate(x, rotary, 1); }

at::Tensor RotateBackward(const at::Tensor& grad_y, const Rotary& rotary) {
  return Rotate(grad_y, rotary, -1);
}

at::Tensor SwigluForward(const at::Tensor& gate, const at::Tensor& up) { return at::silu(gate).mul_(up); }

SwigluGrads SwigluBackward(at::Tensor grad_product, const at::Tensor& gate, const at::Tensor& up) {
  at::Tensor grad_up = at::silu(gate).mul_(grad_product);
  grad_product.mul_(up);
  at::silu_backward_out(grad_product, grad_product, gate);
  return {std::move(grad_product), std::move(grad_up)};
}

ChunkLoss CrossEntropyForward(const at::Tensor& logits, const at::Tensor& targets) {
  const at::Tensor largest = at::amax(logits, {-1}, /*keepdim=*/true).to(at::kFloat);
  at::Tensor shifted = at::sub(logits, largest);  // In fp32.
  const at::Tensor of_target = shifted.gather(-1, targets.clamp_min(0).unsqueeze(-1));
  const at::Tensor log_sum = shifted.exp_().sum(-1, /*keepdim=*/true).log_();
  const at::Tensor ignored = (targets == kIgnoredTarget).unsqueeze(-1);
  return {(log_sum - of_target).masked_fill_(ignored, 0).sum(), largest + log_sum};
}

void CrossEntropyBackward(const at::Tensor& log_sum_exp, const at::Tensor& targets,
                          const at::Tensor& grad_loss, at::Tensor* logits) {
  // Probabilities less one at the target, in fp32: rounded first, one that is nearly sure would lose its
  // rest.
  at::Tensor grad = at::sub(*logits, log_sum_exp).exp_();
  const at::Tensor rows = targets.clamp_min(0).unsqueeze(-1);
  grad.scatter_add_(-1, rows, at::full_like(log_sum_exp, -1));
  const at::Tensor scale = (targets != kIgnoredTarget).unsqueeze(-1) * grad_loss;
  at::mul_out(*logits, grad, scale);
}

}  // namespace fsdpd
