#include "fsdp/engine/operations.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace fsdpd {
namespace {

// As PyTorch's clip_grad_norm_ has it: keeps a gradient of norm zero out of a division by zero.
constexpr double kClipEpsilon = 1e-6;

at::ScalarType ScalarTypeOf(DType dtype) { return dtype == DType::kBf16 ? at::kBFloat16 : at::kFloat; }

std::vector<at::Tensor> ParamViews(const UnitLayout& unit, const at::Tensor& flat) {
  std::vector<at::Tensor> views;
  for (const ParamSlot& param : unit.params) {
    views.push_back(flat.narrow(0, param.offset, param.elements).view(param.shape));
  }
  return views;
}

}  // namespace

Operations::Operations(const OperationParts& parts)
    : parts_(parts),
      sharded_(spec().strategy == Strategy::kOptimGradsParams),
      shard_(sharded_ ? parts.rank : 0),
      adamw_(spec().adamw, parts.plan->layout, shard_, parts.device),
      gathered_(parts.units->size()),
      micro_batches_(spec().micro_batches_per_step()) {
  const at::TensorOptions fp32 = at::TensorOptions().dtype(at::kFloat).device(parts.device);
  sums_ = at::zeros({2}, fp32);
  loss_ = sums_.select(0, 1);
  if (spec().clip_norm > 0) grad_divisor_ = at::ones({}, fp32);
  const std::vector<Buffer>& buffers = parts.plan->program.buffers;
  for (size_t b = 0; b < buffers.size(); ++b) {
    if (buffers[b].kind == BufferKind::kGathered) {
      gathered_[buffers[b].unit] = parts.arena->View(buffers[b], ScalarTypeOf(spec().compute));
    } else {
      gradients_[static_cast<int>(b)] = MakeGradientBucket(buffers[b]);
    }
  }
  for (int u = 0; u < parts.params->size(); ++u) BindUnit(u);
}

void Operations::BindUnit(int unit) {
  FSDPD_CHECK(gathered_[unit].defined());
  // Forward and backward see the same bytes, at first zero instead of whatever the allocation held.
  gathered_[unit].zero_();
  (*parts_.units)[unit]->Bind(ParamViews(layout(unit), gathered_[unit]));
  UnitShard& shard = parts_.params->unit(unit);
  if (sharded_) {
    shard.grad = at::zeros_like(shard.main);
    return;
  }
  // Gradients that are not sharded stay in their bucket.
  for (const auto& [buffer, gradient] : gradients_) {
    if (parts_.plan->program.buffers[buffer].unit == unit) shard.grad = gradient.flat;
  }
}

Operations::GradientBucket Operations::MakeGradientBucket(const Buffer& buffer) const {
  const UnitLayout& unit = layout(buffer.unit);
  GradientBucket bucket;
  bucket.flat = parts_.arena->View(buffer, at::kFloat);
  FSDPD_CHECK(bucket.flat.numel() == unit.bucket_elements);
  bucket.params = ParamViews(unit, bucket.flat);
  int64_t end = 0;
  for (const ParamSlot& param : unit.params) {
    if (param.offset > end) bucket.padding.push_back(bucket.flat.narrow(0, end, param.offset - end));
    end = param.offset + param.elements;
  }
  if (unit.bucket_elements > end) {
    bucket.padding.push_back(bucket.flat.narrow(0, end, unit.bucket_elements - end));
  }
  return bucket;
}

const Operations::GradientBucket& Operations::GradientOf(const Instruction& instruction) const {
  for (const BufferUse& use : instruction.uses) {
    const auto found = gradients_.find(use.buffer);
    if (found != gradients_.end()) return found->second;
  }
  FSDPD_CHECK(false);  // The verifier saw to it that Backward and Reduce use one.
  return gradients_.begin()->second;
}

void Operations::BeginStep(int64_t step, double learning_rate, const std::vector<Batch>& batches) {
  FSDPD_CHECK(batches.size() == micro_batches_.size());
  at::NoGradGuard no_grad;
  adamw_.BeginStep(step, learning_rate);
  sums_.zero_();
  for (size_t m = 0; m < batches.size(); ++m) {
    micro_batches_[m].input.tokens = batches[m].tokens.to(parts_.device);
    micro_batches_[m].input.targets = batches[m].targets.to(parts_.device);
    micro_batches_[m].input.hidden = at::Tensor();
    micro_batches_[m].grad_hidden = at::Tensor();
  }
}

absl::Status Operations::Run(const Instruction& instruction) {
  at::NoGradGuard no_grad;  // Units turn gradients on for themselves.
  switch (instruction.op) {
    case Op::kGather:
      return Gather(instruction.unit);
    case Op::kForward:
      Forward(instruction.unit, instruction.micro_batch);
      return absl::OkStatus();
    case Op::kRelease:
      return absl::OkStatus();  // A place in the order, which the plan's lifetimes refer to.
    case Op::kBackward:
      Backward(instruction);
      return absl::OkStatus();
    case Op::kReduce:
      return Reduce(instruction);
    case Op::kNorm:
      return Norm();
    case Op::kUpdate:
      Update(instruction.unit);
      return absl::OkStatus();
  }
  return absl::OkStatus();
}

absl::Status Operations::Gather(int unit) {
  const int64_t elements = layout(unit).shard_elements;
  at::Tensor& bucket = gathered_[unit];
  bucket.narrow(0, shard_ * elements, elements).copy_(parts_.params->unit(unit).main);
  if (!sharded_) return absl::OkStatus();
  return parts_.gather->AllGather(bucket.mutable_data_ptr(), elements, spec().compute);
}

void Operations::Forward(int unit, int micro_batch) {
  MicroBatch& current = micro_batches_[micro_batch];
  const bool keep = spec().recompute == Recompute::kNone;
  UnitOutput output = (*parts_.units)[unit]->Forward(micro_batch, current.input, keep);
  current.input.hidden = std::move(output.hidden);
  if (IsLast(unit)) loss_.add_(output.loss, 1.0 / (micro_batches_.size() * spec().world));
}

void Operations::Backward(const Instruction& instruction) {
  const GradientBucket& bucket = GradientOf(instruction);
  // A shard is reduced, measured and updated as a whole, padding included.
  if (!instruction.accumulate) {
    for (at::Tensor padding : bucket.padding) padding.zero_();
  }
  MicroBatch& current = micro_batches_[instruction.micro_batch];
  const double scale = 1.0 / (micro_batches_.size() * spec().world);
  const at::Tensor grad_hidden = std::move(current.grad_hidden);
  current.grad_hidden = (*parts_.units)[instruction.unit]->Backward(
      instruction.micro_batch, grad_hidden, scale, instruction.accumulate, bucket.params);
}

absl::Status Operations::Reduce(const Instruction& instruction) {
  const GradientBucket& bucket = GradientOf(instruction);
  float* data = bucket.flat.mutable_data_ptr<float>();
  if (!sharded_) return parts_.reduce->AllReduce(data, bucket.flat.numel());
  const int64_t elements = layout(instruction.unit).shard_elements;
  at::Tensor& grad = parts_.params->unit(instruction.unit).grad;
  if (!instruction.accumulate) {
    return parts_.reduce->ReduceScatter(data, grad.mutable_data_ptr<float>(), elements);
  }
  FSDPD_RETURN_IF_ERROR(parts_.reduce->ReduceScatter(data, data + shard_ * elements, elements));
  grad.add_(bucket.flat.narrow(0, shard_ * elements, elements));
  return absl::OkStatus();
}

absl::Status Operations::Norm() {
  std::vector<at::Tensor> grads;
  for (int u = 0; u < parts_.params->size(); ++u) grads.push_back(parts_.params->unit(u).grad);
  const at::Tensor norms = at::stack(at::_foreach_norm(grads, 2));
  at::Tensor squares = sums_.select(0, 0);
  squares.copy_(norms.square().sum());
  // Ranks that all hold the whole gradient give their part of it to the sum.
  if (!sharded_) squares.div_(static_cast<double>(spec().world));
  FSDPD_RETURN_IF_ERROR(parts_.reduce->AllReduce(sums_.mutable_data_ptr<float>(), 2));
  if (grad_divisor_.defined()) {
    grad_divisor_.copy_(squares.sqrt().add_(kClipEpsilon).div_(spec().clip_norm).clamp_min_(1.0));
  }
  return absl::OkStatus();
}

void Operations::Update(int unit) { adamw_.Update(unit, parts_.params->unit(unit), grad_divisor_); }

Operations::StepResult Operations::Result() const {
  const at::Tensor sums = sums_.cpu();
  const float* values = sums.const_data_ptr<float>();
  return {values[1], std::sqrt(static_cast<double>(values[0]))};
}

}  // namespace fsdpd
