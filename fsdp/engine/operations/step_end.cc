#include "fsdp/engine/operations/step_end.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_amp_update_scale.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"

namespace fsdpd {
namespace {

// As in PyTorch's clip_grad_norm_: avoids a division by zero for a zero gradient.
constexpr double kClipEpsilon = 1e-6;

constexpr double kLossScaleGrowth = 2;
constexpr double kLossScaleBackoff = 0.5;

// Indexes into the result for the host.
constexpr int kFirstRouting = 11;
constexpr int kFirstFp8 = kFirstRouting + kRoutingSums;
constexpr int kResults = kFirstFp8 + kFp8Statistics;

// Placeholder for the norm of a step that was skipped or is unknown.
constexpr float kNoNorm = std::numeric_limits<float>::quiet_NaN();

// The initial value of StepEnd::norms_.
at::Tensor NormsOf(const TrainingState& state, int64_t window) {
  const at::Tensor norms = at::full({window}, kNoNorm, at::TensorOptions().dtype(at::kFloat));
  float* const values = norms.mutable_data_ptr<float>();
  const auto known = static_cast<int64_t>(state.grad_norms.size());
  for (int64_t i = 0; i < std::min(window, known); ++i) {
    values[(state.step - i) % window] = state.grad_norms[known - 1 - i].value_or(kNoNorm);
  }
  return norms;
}

}  // namespace

// Each target counts once: tensor-parallel ranks have the same targets, and each computes the loss of its
// part of the vocabulary; pipeline stages have the same samples.
StepEnd::StepEnd(const Plan* plan, const MeshPosition& position, const TrainingState& start,
                 at::Device device)
    : plan_(plan),
      counts_targets_(position.IndexIn(Group::kTensor) == 0 && plan->layout.stage.last()),
      may_overflow_(plan->spec.mesh.size(Axis::kExpert) > 1) {
  const at::NoGradGuard no_grad;
  const at::TensorOptions fp32 = at::TensorOptions().dtype(at::kFloat).device(device);
  const bool fresh = start.step == 0;
  const double initial_scale = !spec().scales_loss() ? 1.0
                               : fresh               ? spec().loss_scale.initial
                                                     : start.loss_scale;
  sums_ = at::zeros({kStepAllReduceSize + plan_->layout.choices}, fp32);
  bias_steps_ = at::zeros({plan_->layout.choices}, fp32);
  learning_rate_ = at::zeros({}, fp32.dtype(at::kDouble));
  scalars_ = {at::zeros_like(learning_rate_), at::ones({}, fp32), at::zeros({}, fp32)};
  loss_scale_ = at::full({}, initial_scale, fp32);
  good_steps_ = at::full({}, start.good_steps, fp32.dtype(at::kInt));
  for (at::Tensor* flag : {&nonfinite_, &spike_, &ended_, &threshold_, &overflowed_})
    *flag = at::zeros({}, fp32);
  if (spec().on_spike.watched()) {
    norms_ = NormsOf(start, spec().on_spike.window).to(device);
    norms_index_ = at::zeros({1}, fp32.dtype(at::kLong));
  }
  if (spec().precision.fp8) fp8_watch_ = std::make_unique<Fp8Watch>(device);
  for (at::Tensor& result : results_) {
    result = at::zeros({kResults}, at::TensorOptions().dtype(at::kFloat));
    if (device.is_cuda()) result = result.pin_memory();
  }
}

void StepEnd::BeginStep(const StepInputs& inputs, int64_t counted) {
  learning_rate_.fill_(inputs.learning_rate);
  if (spec().on_spike.watched()) norms_index_.fill_(inputs.step % spec().on_spike.window);
  BeginEvaluation(counted);
  if (inputs.requests_save) Sum(kSaveRequests).fill_(1);
}

void StepEnd::BeginEvaluation(int64_t counted) {
  sums_.zero_();
  if (counts_targets_) Sum(kCounted).fill_(static_cast<double>(counted));
}

absl::Status StepEnd::Norm(const at::Tensor& squares, Communicator* group, Optimizer* optimizer,
                           int result_slot) {
  const at::Tensor& divisor = scalars_.grad_divisor;
  if (squares.defined()) Sum(kSquares).copy_(squares);
  FSDPD_RETURN_IF_ERROR(group->AllReduce(sums_.mutable_data_ptr<float>(), sums_.numel()));
  DiscardNanOverflow();
  divisor.copy_(Sum(kCounted).clamp_min(1)).div_(static_cast<double>(spec().tokens_per_step()));
  divisor.mul_(loss_scale_);
  const at::Tensor norm = Sum(kSquares).sqrt().div_(divisor);
  DecideSkip(norm);
  ComputeBiasSteps();
  if (spec().optimizer.clip_norm > 0) {
    divisor.mul_(norm.add(kClipEpsilon).div_(spec().optimizer.clip_norm).clamp_min_(1.0));
  }
  scalars_.learning_rate.copy_(learning_rate_);
  optimizer->Count(scalars_);
  const at::Tensor used = loss_scale_.clone();
  if (spec().scales_loss()) UpdateLossScale(used);
  WriteResult(norm, used, result_slot);
  return absl::OkStatus();
}

// NaN inputs all route to the same experts; do not count that as overflow. A genuine overflow has a finite
// loss.
void StepEnd::DiscardNanOverflow() {
  if (!may_overflow_) return;
  const at::Tensor overflow = Sum(kExpertOverflow);
  overflow.copy_(at::where(Sum(kLossSum).isfinite(), overflow, at::zeros_like(overflow)));
}

// An overflowed step is replayed, so it must not move the loss scale.
void StepEnd::UpdateLossScale(const at::Tensor& used) {
  const at::Tensor good_steps = good_steps_.clone();
  at::_amp_update_scale_(loss_scale_, good_steps_, nonfinite_, kLossScaleGrowth, kLossScaleBackoff,
                         spec().loss_scale.growth_interval);
  if (!may_overflow_) return;
  loss_scale_.copy_(at::where(overflowed_.gt(0), used, loss_scale_));
  good_steps_.copy_(at::where(overflowed_.gt(0), good_steps, good_steps_));
}

// With a loss scale, a step that is not finite does not end the run: the host decides when there were too
// many. For a step that overflowed, and those after it, no other condition is evaluated: their results are
// invalid.
void StepEnd::DecideSkip(const at::Tensor& norm) {
  const at::Tensor& skip = scalars_.found_nonfinite;
  nonfinite_.copy_(sums_.isfinite().all().logical_not());
  if (may_overflow_) {
    overflowed_.add_(Sum(kExpertOverflow)).clamp_max_(1).ceil_();
    nonfinite_.mul_(1 - overflowed_);
  }
  if (!spec().scales_loss() && spec().on_nonfinite.action != StepAction::kSkip) ended_.add_(nonfinite_);
  skip.copy_(nonfinite_).add_(ended_);
  if (spec().on_spike.watched()) {
    DetectSpike(norm);
    if (may_overflow_) spike_.mul_(1 - overflowed_);
    if (spec().on_spike.action != StepAction::kSkip) ended_.add_(spike_);
    skip.add_(spike_).add_(ended_);
  }
  if (may_overflow_) skip.add_(overflowed_);
  ended_.clamp_max_(1);
  skip.clamp_max_(1);
  if (spec().on_spike.watched()) RecordNorm(norm);
}

// For a step that will be replayed, keeps the old entry of the slot in norms_.
void StepEnd::RecordNorm(const at::Tensor& norm) {
  at::Tensor entry = at::where(scalars_.found_nonfinite.gt(0), at::full_like(norm, kNoNorm), norm).view({1});
  if (may_overflow_) entry = at::where(overflowed_.gt(0), norms_.gather(0, norms_index_), entry);
  norms_.index_copy_(0, norms_index_, entry);
}

// Bias change per expert: bias_update_rate * sign(mean load - load of the expert). Multiplied by the number
// of experts to compare integers, which fp64 represents exactly.
void StepEnd::ComputeBiasSteps() {
  if (plan_->layout.choices == 0) return;
  const ExpertsConfig& experts = std::get<LlamaConfig>(spec().model).experts;
  const at::Tensor choices = ExpertLoads(0, plan_->layout.choices).view({-1, experts.count}).to(at::kDouble);
  const at::Tensor all = choices.sum(-1, /*keepdim=*/true);
  const at::Tensor steps = all.sub(choices.mul(experts.count)).sign_();
  bias_steps_.copy_(steps.mul_(experts.bias_update_rate).flatten());
  bias_steps_.mul_(scalars_.found_nonfinite.neg().add_(1));
}

// A spike is a finite norm above grad_norm_factor * median of the window (the lower median if the count is
// even). Not judged until half of the window is known.
void StepEnd::DetectSpike(const at::Tensor& norm) {
  const int64_t enough = (spec().on_spike.window + 1) / 2;
  const at::Tensor sorted = std::get<0>(at::sort(norms_));  // NaN sorts last.
  const at::Tensor known = norms_.isfinite().sum();
  const at::Tensor middle = known.sub(1).clamp_min_(0).bitwise_right_shift(1);
  const at::Tensor median = sorted.gather(0, middle.view({1})).squeeze(0);
  threshold_.copy_(at::where(known.ge(enough), median.mul(spec().on_spike.grad_norm_factor),
                             at::full_like(median, std::numeric_limits<float>::infinity())));
  spike_.copy_(norm.isfinite().logical_and_(norm.gt(threshold_)));
}

absl::Status StepEnd::Loss(Communicator* group, int result_slot) {
  FSDPD_RETURN_IF_ERROR(group->AllReduce(sums_.mutable_data_ptr<float>(), kStepAllReduceSize));
  DiscardNanOverflow();
  WriteResult(Sum(kSquares), loss_scale_, result_slot);
  return absl::OkStatus();
}

void StepEnd::WriteResult(const at::Tensor& norm, const at::Tensor& loss_scale, int result_slot) {
  const at::Tensor result =
      at::stack({norm, Sum(kLossSum), Sum(kCounted), loss_scale, nonfinite_, loss_scale_,
                 good_steps_.to(at::kFloat), spike_, threshold_, Sum(kSaveRequests), Sum(kExpertOverflow)});
  at::Tensor into = results_[result_slot];
  into.narrow(0, 0, kFirstRouting).copy_(result, /*non_blocking=*/true);
  into.narrow(0, kFirstRouting, kRoutingSums).copy_(RoutingSums(), /*non_blocking=*/true);
  if (fp8_watch_ == nullptr) return;
  into.narrow(0, kFirstFp8, kFp8Statistics).copy_(fp8_watch_->Read(), /*non_blocking=*/true);
  fp8_watch_->Reset();  // Gathers for the next step, which count again, come after this step's updates.
}

StepResult StepEnd::Result(int result_slot) const {
  const float* values = results_[result_slot].const_data_ptr<float>();
  StepResult result;
  result.grad_norm = values[0];
  result.loss_sum = values[1];
  result.counted = std::llround(values[2]);
  result.loss_scale = values[3];
  result.not_finite = values[4] != 0;
  result.next_loss_scale = values[5];
  result.good_steps = std::llround(values[6]);
  result.spike = values[7] != 0;
  result.spike_threshold = values[8];
  result.save_requested = values[9] > 0;
  result.expert_overflow = values[10] > 0;
  std::copy_n(values + kFirstRouting, kRoutingSums, result.routing.begin());
  std::copy_n(values + kFirstFp8, kFp8Statistics, result.fp8.begin());
  return result;
}

}  // namespace fsdpd
