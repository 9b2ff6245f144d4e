#include "fsdp/model/native/native_ops.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_fused_rms_norm.h>
#include <ATen/ops/_fused_rms_norm_backward.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/silu_backward.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>

#include <tuple>
#include <utility>

#include "base/check.h"
#include "fsdp/kernels/cross_entropy.h"
#include "fsdp/kernels/rms_norm.h"
#include "fsdp/kernels/sum_parts.h"
#include "fsdp/kernels/swiglu.h"
#include "fsdp/model/unit/unit.h"
#include "fsdp/torch/scalar_type.h"

namespace fsdpd {
namespace {

static_assert(kIgnoredTarget == kernels::kNoTarget);

kernels::Stream StreamOf(const at::Tensor& x) { return kernels::CurrentStream(x.get_device()); }

at::Tensor RmsNormBackwardOnCpu(const at::Tensor& grad_y, const at::Tensor& x, const at::Tensor& rstd,
                                const at::Tensor& weight, bool accumulate, const at::Tensor& weight_grad_into,
                                const at::Tensor& y_into) {
  const at::Tensor wide_grad = grad_y.to(at::kFloat);
  const at::Tensor unit = x.to(at::kFloat) * rstd;  // x / rms(x)
  if (weight_grad_into.defined()) {
    GradInto(at::sum(wide_grad * unit, {0}), accumulate, weight_grad_into);
  }
  at::Tensor grad_unit = wide_grad * weight;
  if (y_into.defined()) y_into.copy_(unit * weight);
  const at::Tensor radial = (grad_unit * unit).mean(-1, /*keepdim=*/true);
  return grad_unit.addcmul_(unit, radial, -1).mul_(rstd).to(x.scalar_type());
}

const void* AddressOf(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.const_data_ptr() : nullptr;
}

Normed RmsNormForwardOnCuda(const at::Tensor& x, const at::Tensor& weight, double epsilon,
                            const at::Tensor& y_into) {
  const DType type = DTypeOf(x.scalar_type());
  if (!kernels::TakesRmsNorm(x.size(1), type, {AddressOf(x), AddressOf(weight), AddressOf(y_into)})) {
    auto [y, rstd] = at::_fused_rms_norm(x, weight.sizes(), weight, epsilon);
    if (y_into.defined()) y = y_into.copy_(y);
    return {std::move(y), std::move(rstd)};
  }
  FSDPD_CHECK(x.is_contiguous() && (!y_into.defined() || y_into.is_contiguous()));
  Normed normed = {y_into.defined() ? y_into : at::empty_like(x),
                   at::empty({x.size(0), 1}, x.options().dtype(at::kFloat))};
  kernels::RmsNormForward({x.const_data_ptr(), weight.const_data_ptr(), normed.y.data_ptr(),
                           normed.rstd.data_ptr<float>(), x.size(0), x.size(1), epsilon, type},
                          StreamOf(x));
  return normed;
}

// Undefined if the kernel does not support rows of this shape.
at::Tensor RmsNormBackwardByKernel(const at::Tensor& grad_y, const at::Tensor& x, const at::Tensor& rstd,
                                   const at::Tensor& weight, const at::Tensor& residual, bool accumulate,
                                   const at::Tensor& weight_grad_into, const at::Tensor& y_into,
                                   at::Tensor* y_largest) {
  FSDPD_CHECK(grad_y.is_contiguous() && x.is_contiguous());
  FSDPD_CHECK(!residual.defined() || residual.is_contiguous());
  if (!kernels::TakesRmsNorm(
          x.size(1), DTypeOf(x.scalar_type()),
          {AddressOf(grad_y), AddressOf(x), AddressOf(weight), AddressOf(residual), AddressOf(y_into)})) {
    return {};
  }
  at::Tensor grad_x = at::empty_like(x), parts;
  kernels::RmsNormBackwardArgs args = {};
  args.grad_y = grad_y.const_data_ptr();
  args.x = x.const_data_ptr();
  args.rstd = rstd.const_data_ptr<float>();
  args.weight = weight.const_data_ptr();
  args.residual = AddressOf(residual);
  args.grad_x = grad_x.data_ptr();
  args.y = y_into.defined() ? y_into.data_ptr() : nullptr;
  args.rows = x.size(0);
  args.width = x.size(1);
  args.type = DTypeOf(x.scalar_type());
  if (weight_grad_into.defined()) {
    parts = at::empty({kernels::kRmsNormBlocks, args.width}, rstd.options());
    args.parts = parts.data_ptr<float>();
    args.weight_grad = weight_grad_into.data_ptr();
    args.grad = DTypeOf(weight_grad_into.scalar_type());
    args.accumulate = accumulate;
  }
  if (y_largest != nullptr && y_into.defined() && args.type == DType::kBf16 &&
      kernels::TakesFp8RmsNorm(args.width, {})) {
    *y_largest = at::empty({args.width}, rstd.options().dtype(at::kInt));
    args.largest = reinterpret_cast<uint32_t*>(y_largest->data_ptr<int32_t>());
  }
  kernels::RmsNormBackward(args, StreamOf(x));
  return grad_x;
}

// The rows of the logits are contiguous: the product of a chunk, or the first rows of its buffer.
kernels::CrossEntropyArgs CrossEntropyArgsOf(const at::Tensor& logits, const at::Tensor& targets,
                                             const at::Tensor& log_sum_exp) {
  FSDPD_CHECK(logits.is_contiguous() && targets.is_contiguous() && log_sum_exp.is_contiguous());
  return {logits.data_ptr(), targets.const_data_ptr<int64_t>(), log_sum_exp.data_ptr<float>(), logits.size(0),
          logits.size(1),    DTypeOf(logits.scalar_type())};
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
    // Sorts tokens and adds the rows of each in order; index_add_ would add in unspecified order.
    into.index_put_({tokens}, grad.to(into.scalar_type()), /*accumulate=*/true);
  } else if (into.scalar_type() == at::kFloat) {
    into.index_add_(0, tokens, grad.to(at::kFloat));
  } else {
    into.add_(at::zeros(into.sizes(), at::kFloat).index_add_(0, tokens, grad.to(at::kFloat)));
  }
}

Normed RmsNormForward(const at::Tensor& x, const at::Tensor& weight, double epsilon,
                      const at::Tensor& y_into) {
  if (x.is_cuda()) return RmsNormForwardOnCuda(x, weight, epsilon, y_into);
  const at::Tensor wide = x.to(at::kFloat);
  at::Tensor rstd = wide.square().mean(-1, /*keepdim=*/true).add_(epsilon).rsqrt_();
  const at::Tensor y = at::mul(wide, rstd).mul_(weight);
  if (y_into.defined()) return {y_into.copy_(y), std::move(rstd)};
  return {y.to(x.scalar_type()), std::move(rstd)};
}

at::Tensor RmsNormBackward(const at::Tensor& grad_y, const at::Tensor& x, const at::Tensor& rstd,
                           const at::Tensor& weight, const at::Tensor& residual, bool accumulate,
                           const at::Tensor& weight_grad_into, const at::Tensor& y_into,
                           at::Tensor* y_largest) {
  at::Tensor grad_x;
  if (x.is_cuda()) {
    grad_x = RmsNormBackwardByKernel(grad_y, x, rstd, weight, residual, accumulate, weight_grad_into, y_into,
                                     y_largest);
    if (grad_x.defined()) return grad_x;
    at::Tensor grad_weight;
    std::tie(grad_x, grad_weight) = at::_fused_rms_norm_backward(grad_y, x, weight.sizes(), rstd, weight,
                                                                 {true, weight_grad_into.defined()});
    GradInto(grad_weight, accumulate, weight_grad_into);
    if (y_into.defined()) y_into.copy_(x.to(at::kFloat).mul_(rstd).mul_(weight));
  } else {
    grad_x = RmsNormBackwardOnCpu(grad_y, x, rstd, weight, accumulate, weight_grad_into, y_into);
  }
  return residual.defined() ? grad_x.add_(residual) : grad_x;
}

at::Tensor SwigluForward(const at::Tensor& gate_up) {
  const int64_t width = gate_up.size(1) / 2;
  if (!gate_up.is_cuda()) return at::silu(gate_up.narrow(1, 0, width)).mul_(gate_up.narrow(1, width, width));
  FSDPD_CHECK(gate_up.is_contiguous());
  at::Tensor product = at::empty({gate_up.size(0), width}, gate_up.options());
  kernels::SwigluForward(gate_up.const_data_ptr(), product.data_ptr(), gate_up.size(0), width,
                         DTypeOf(gate_up.scalar_type()), StreamOf(gate_up));
  return product;
}

void SwigluBackward(const at::Tensor& grad_product, const at::Tensor& gate_up) {
  const int64_t width = gate_up.size(1) / 2;
  if (gate_up.is_cuda()) {
    FSDPD_CHECK(grad_product.is_contiguous() && gate_up.is_contiguous());
    return kernels::SwigluBackward(grad_product.data_ptr(), gate_up.data_ptr(), gate_up.size(0), width,
                                   DTypeOf(gate_up.scalar_type()), StreamOf(gate_up));
  }
  at::Tensor gate = gate_up.narrow(1, 0, width), up = gate_up.narrow(1, width, width);
  const at::Tensor silu = at::silu(gate), product = silu * up;
  up.mul_(grad_product);  // The gradient of silu(gate).
  at::silu_backward_out(gate, up, gate);
  at::mul_out(up, silu, grad_product);
  grad_product.copy_(product);
}

at::Tensor SumOfParts(const at::Tensor& sent, const at::Tensor& received, int64_t rank,
                      const at::Tensor& addend) {
  const at::Tensor own = sent.select(0, rank);
  if (sent.is_cuda()) {
    FSDPD_CHECK(sent.is_contiguous() && received.is_contiguous() &&
                (!addend.defined() || addend.is_contiguous()));
    FSDPD_CHECK(!addend.defined() || addend.scalar_type() == sent.scalar_type());
    at::Tensor sum = at::empty(own.sizes(), own.options());
    kernels::SumPartsArgs args = {};
    args.parts = received.const_data_ptr();
    args.own = own.const_data_ptr();
    args.addend = AddressOf(addend);
    args.sum = sum.data_ptr();
    args.count = own.numel();
    args.ranks = static_cast<int>(sent.size(0));
    args.rank = static_cast<int>(rank);
    args.type = args.sum_type = DTypeOf(sent.scalar_type());
    kernels::SumParts(args, StreamOf(sent));
    return sum;
  }
  at::Tensor sum = at::zeros(own.sizes(), own.options().dtype(at::kFloat));
  for (int64_t r = 0; r < sent.size(0); ++r) sum.add_(r == rank ? own : received.select(0, r));
  if (addend.defined()) sum.add_(addend);
  return sum.to(sent.scalar_type());
}

LocalVocab LocalVocabOf(const at::Tensor& tokens, int64_t words, int64_t rank) {
  return {tokens.remainder(words), tokens.floor_divide(words).ne(rank)};
}

ChunkLoss CrossEntropyForward(const at::Tensor& logits, const at::Tensor& targets) {
  if (logits.is_cuda()) {
    const at::Tensor losses = at::empty(targets.sizes(), logits.options().dtype(at::kFloat));
    const at::Tensor log_sum_exp = at::empty({logits.size(0), 1}, losses.options());
    kernels::CrossEntropyForward(CrossEntropyArgsOf(logits, targets, log_sum_exp), losses.data_ptr<float>(),
                                 StreamOf(logits));
    return {losses.sum(), log_sum_exp};
  }
  const at::Tensor largest = at::amax(logits, {-1}, /*keepdim=*/true).to(at::kFloat);
  at::Tensor shifted = at::sub(logits, largest);  // In fp32.
  const at::Tensor of_target = shifted.gather(-1, targets.clamp_min(0).unsqueeze(-1));
  const at::Tensor log_sum = shifted.exp_().sum(-1, /*keepdim=*/true).log_();
  const at::Tensor ignored = (targets < 0).unsqueeze(-1);
  return {(log_sum - of_target).masked_fill_(ignored, 0).sum(), largest + log_sum};
}

void CrossEntropyBackward(const at::Tensor& log_sum_exp, const at::Tensor& targets,
                          const at::Tensor& grad_loss, at::Tensor* logits) {
  if (logits->is_cuda()) {
    return kernels::CrossEntropyBackward(CrossEntropyArgsOf(*logits, targets, log_sum_exp),
                                         grad_loss.const_data_ptr<float>(), StreamOf(*logits));
  }
  // Probabilities minus the one-hot target, in fp32: if the probability were rounded first, the difference of
  // a nearly certain target would be lost.
  at::Tensor grad = at::sub(*logits, log_sum_exp).exp_();
  const at::Tensor rows = targets.clamp_min(0).unsqueeze(-1);
  grad.scatter_add_(-1, rows, (targets >= 0).to(grad.scalar_type()).neg_().unsqueeze(-1));
  const at::Tensor scale = (targets != kIgnoredTarget).unsqueeze(-1) * grad_loss;
  at::mul_out(*logits, grad, scale);
}

}  // namespace fsdpd
