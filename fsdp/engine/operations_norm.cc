#include <ATen/TensorOperators.h>
#include <ATen/ops/_amp_update_scale.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "fsdp/engine/operations.h"
#include "fsdp/engine/step_all_reduce.h"

// End of a step, from its all-reduced values: decides whether the step is applied, computes the gradient
// divisor and the change of routing biases, and reports the result to the host.
namespace fsdpd {
namespace {

// As in PyTorch's clip_grad_norm_: avoids a division by zero for a zero gradient.
constexpr double kClipEpsilon = 1e-6;

constexpr double kLossScaleGrowth = 2;
constexpr double kLossScaleBackoff = 0.5;

}  // namespace

absl::Status Operations::Norm(const Instruction& instruction) {
  const at::Tensor& divisor = scalars_.grad_divisor;
  const at::Tensor squares = sums_.select(0, kSquares);
  const at::Tensor own = squares_.Sum();
  if (own.defined()) squares.copy_(own);
  FSDPD_RETURN_IF_ERROR(GroupOf(instruction)->AllReduce(sums_.mutable_data_ptr<float>(), sums_.numel()));
  DiscardNanOverflow();
  divisor.copy_(sums_.select(0, kCounted).clamp_min(1)).div_(static_cast<double>(spec().tokens_per_step()));
  divisor.mul_(loss_scale_);
  const at::Tensor norm = squares.sqrt().div_(divisor);
  DecideSkip(norm);
  ComputeBiasSteps();
  if (spec().optimizer.clip_norm > 0) {
    divisor.mul_(norm.add(kClipEpsilon).div_(spec().optimizer.clip_norm).clamp_min_(1.0));
  }
  scalars_.learning_rate.copy_(learning_rate_);
  optimizer_->Count(scalars_);
  const at::Tensor used = loss_scale_.clone();
  if (spec().scales_loss()) UpdateLossScale(used);
  WriteResult(norm, used);
  return absl::OkStatus();
}

// NaN inputs all route to the same experts; do not count that as overflow. A genuine overflow has a finite
// loss.
void Operations::DiscardNanOverflow() {
  if (!may_overflow_) return;
  const at::Tensor overflow = sums_.select(0, kExpertOverflow);
  overflow.copy_(at::where(sums_.select(0, kLossSum).isfinite(), overflow, at::zeros_like(overflow)));
}

// An overflowed step is replayed, so it must not move the loss scale.
void Operations::UpdateLossScale(const at::Tensor& used) {
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
void Operations::DecideSkip(const at::Tensor& norm) {
  const at::Tensor& skip = scalars_.found_nonfinite;
  nonfinite_.copy_(sums_.isfinite().all().logical_not());
  if (may_overflow_) {
    overflowed_.add_(sums_.select(0, kExpertOverflow)).clamp_max_(1).ceil_();
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
void Operations::RecordNorm(const at::Tensor& norm) {
  at::Tensor entry = at::where(scalars_.found_nonfinite.gt(0), at::full_like(norm, kNoNorm), norm).view({1});
  if (may_overflow_) entry = at::where(overflowed_.gt(0), norms_.gather(0, norms_index_), entry);
  norms_.index_copy_(0, norms_index_, entry);
}

// Bias change per expert: bias_update_rate * sign(mean load - load of the expert). Multiplied by the number
// of experts to compare integers, which fp64 represents exactly.
void Operations::ComputeBiasSteps() {
  if (layout().choices == 0) return;
  const ExpertsConfig& experts = std::get<LlamaConfig>(spec().model).experts;
  const at::Tensor choices = ExpertLoads(0, layout().choices).view({-1, experts.count}).to(at::kDouble);
  const at::Tensor all = choices.sum(-1, /*keepdim=*/true);
  const at::Tensor steps = all.sub(choices.mul(experts.count)).sign_();
  bias_steps_.copy_(steps.mul_(experts.bias_update_rate).flatten());
  bias_steps_.mul_(scalars_.found_nonfinite.neg().add_(1));
}

// A spike is a finite norm above grad_norm_factor * median of the window (the lower median if the count is
// even). Not judged until half of the window is known.
void Operations::DetectSpike(const at::Tensor& norm) {
  const int64_t enough = (spec().on_spike.window + 1) / 2;
  const at::Tensor sorted = std::get<0>(at::sort(norms_));  // NaN sorts last.
  const at::Tensor known = norms_.isfinite().sum();
  const at::Tensor middle = known.sub(1).clamp_min_(0).bitwise_right_shift(1);
  const at::Tensor median = sorted.gather(0, middle.view({1})).squeeze(0);
  threshold_.copy_(at::where(known.ge(enough), median.mul(spec().on_spike.grad_norm_factor),
                             at::full_like(median, std::numeric_limits<float>::infinity())));
  spike_.copy_(norm.isfinite().logical_and_(norm.gt(threshold_)));
}

absl::Status Operations::Loss(const Instruction& instruction) {
  FSDPD_RETURN_IF_ERROR(GroupOf(instruction)->AllReduce(sums_.mutable_data_ptr<float>(), kStepAllReduceSize));
  DiscardNanOverflow();
  WriteResult(sums_.select(0, kSquares), loss_scale_);
  return absl::OkStatus();
}

void Operations::WriteResult(const at::Tensor& norm, const at::Tensor& loss_scale) {
  const at::Tensor result =
      at::stack({norm, sums_.select(0, kLossSum), sums_.select(0, kCounted), loss_scale, nonfinite_,
                 loss_scale_, good_steps_.to(at::kFloat), spike_, threshold_, sums_.select(0, kSaveRequests),
                 sums_.select(0, kExpertOverflow)});
  at::Tensor into = results_[result_slot_];
  into.narrow(0, 0, kFirstRouting).copy_(result, /*non_blocking=*/true);
  into.narrow(0, kFirstRouting, kRoutingSums)
      .copy_(sums_.narrow(0, kRouting, kRoutingSums), /*non_blocking=*/true);
  if (fp8_watch_ == nullptr) return;
  into.narrow(0, kFirstFp8, kFp8Statistics).copy_(fp8_watch_->Read(), /*non_blocking=*/true);
  fp8_watch_->Reset();  // Gathers for the next step, which count again, come after this step's updates.
}

StepResult Operations::Result(int result_slot) const {
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
