// End of a step on the device: the values that all ranks sum, and what follows from them. Decides whether the
// step is applied, computes the gradient divisor, the next loss scale and the change of routing biases, and
// writes the result for the host.
//
// Call order: BeginStep, passes that add to Sum(), Norm; or BeginEvaluation, passes, Loss. Result once the
// host has waited for Norm or Loss, and before the second BeginStep after it. All but Result run on a lane
// with its stream current; the step that they read and write keeps its addresses.
//
// Gradient scale: the loss is a sum over targets, and backward starts from loss_scale / T, where T is the
// number of tokens in the global batch. With `counted` targets that count in the loss,
//
//   reduced gradient = true gradient (of the mean loss) * loss_scale * counted / T
//
// Norm removes this factor from the norm and puts it into the divisor that updates apply; nothing else
// scales.
//
// Bad steps: no rank applies a step whose gradient or loss is not finite, or whose gradient norm is a spike
// (if the spec enables spike detection). The decision is a flag on the device. The history of norms for spike
// detection is on the device too, so nothing waits for the host, and a step submitted ahead is judged with
// the previous step's norm in the history. If the run ends with a bad step, the flag stays set, since the
// host may have submitted another step.
//
// Expert overflow: if the experts of any rank receive more tokens than their capacity
// (MeshContext::ExpertCapacity), no rank applies the step or any that follows it. The host raises the
// capacity and replays these steps.
//
// Routing biases that are adjusted by expert load (Bucket::balances): Norm all-reduces the load of each
// expert and computes the bias change, which is 0 for a skipped step.
//
// Thread safety: none. Exceptions of LibTorch pass through.
#pragma once

#include <ATen/core/Tensor.h>
#include <absl/status/status.h>

#include <array>
#include <memory>

#include "fsdp/checkpoint/job/training_state.h"
#include "fsdp/comm/communicator.h"
#include "fsdp/model/native/fp8_watch.h"
#include "fsdp/optimizer/optimizer.h"
#include "fsdp/plan/plan.h"

namespace fsdpd {

// Inputs of a step, which the host decides when it submits the step.
struct StepInputs {
  int64_t step = 0;
  double learning_rate = 0;
  bool saves = false;          // Take a snapshot. The same on all ranks.
  bool requests_save = false;  // This rank requests a checkpoint (save_schedule.h).
};

// Result of a step or of one round of evaluation; the same on all ranks.
struct StepResult {
  double loss_sum = 0;  // Over the targets that count.
  int64_t counted = 0;
  double grad_norm = 0;        // Norm of the true gradient, before clipping.
  double loss_scale = 1;       // Used by this step.
  bool not_finite = false;     // Loss or gradient; no rank applied the step.
  bool spike = false;          // grad_norm is above the threshold; no rank applied the step.
  double spike_threshold = 0;  // Infinite: too little history; 0: spikes are not detected.
  // As in TrainingState.
  double next_loss_scale = 1;
  int64_t good_steps = 0;
  bool save_requested = false;                    // Some rank requested a checkpoint.
  bool expert_overflow = false;                   // On some rank: the other fields are meaningless.
  std::array<double, kRoutingSums> routing = {};  // Over all tokens and MoE layers.
  std::array<double, kFp8Statistics> fp8 = {};    // Fp8Watch::Read() of this rank.

  bool skipped() const { return not_finite || spike; }
  double loss() const { return loss_sum / static_cast<double>(counted > 0 ? counted : 1); }
};

class StepEnd {
 public:
  // Values of a step that ranks sum, by index.
  enum Value {
    kSquares,
    kLossSum,
    kCounted,
    kSaveRequests,
    kExpertOverflow,  // Number of tokens beyond the expert capacity.
    kRouting,         // First of kRoutingSums.
  };

  // `plan` must outlive this object. `start`: the state before the first step.
  StepEnd(const Plan* plan, const MeshPosition& position, const TrainingState& start, at::Device device);

  // `counted`: targets of this rank that count.
  void BeginStep(const StepInputs& inputs, int64_t counted);
  void BeginEvaluation(int64_t counted);

  // Where passes add this rank's part of a value.
  at::Tensor Sum(Value value) const { return sums_.select(0, value); }
  at::Tensor RoutingSums() const { return sums_.narrow(0, kRouting, kRoutingSums); }
  at::Tensor ExpertLoads(int64_t begin, int64_t experts) const {
    return sums_.narrow(0, kStepAllReduceSize + begin, experts);
  }

  // `squares`: the sum of squares of this rank's gradients; undefined if it has none. Counts the step in the
  // optimizer. The result goes to `result_slot` (0 or 1).
  absl::Status Norm(const at::Tensor& squares, Communicator* group, Optimizer* optimizer, int result_slot);
  absl::Status Loss(Communicator* group, int result_slot);

  const at::Tensor& loss_scale() const { return loss_scale_; }  // For the next step.
  const StepScalars& scalars() const { return scalars_; }       // Read by the updates, like the next.
  const at::Tensor& bias_steps() const { return bias_steps_; }
  Fp8Watch* fp8_watch() const { return fp8_watch_.get(); }  // Null without FP8.

  // Before the steps that overflowed are replayed: applies steps again.
  void ForgetOverflow() { overflowed_.zero_(); }

  // Does not touch the device.
  StepResult Result(int result_slot) const;

 private:
  void DiscardNanOverflow();
  void DecideSkip(const at::Tensor& norm);
  void DetectSpike(const at::Tensor& norm);
  void RecordNorm(const at::Tensor& norm);
  void UpdateLossScale(const at::Tensor& used);
  void ComputeBiasSteps();
  void WriteResult(const at::Tensor& norm, const at::Tensor& loss_scale, int result_slot);

  const Spec& spec() const { return plan_->spec; }

  const Plan* const plan_;
  const bool counts_targets_;  // This rank has targets that no other rank counts.
  const bool may_overflow_;    // Whether experts may exceed their capacity.
  std::unique_ptr<Fp8Watch> fp8_watch_;

  // fp32 scalars on the device.
  at::Tensor sums_;           // Local, then all-reduced: kStepAllReduceSize values, then Layout::choices.
  at::Tensor bias_steps_;     // [Layout::choices]: change of the routing biases.
  at::Tensor learning_rate_;  // For the step that has begun; copied to scalars_ in its Norm.
  StepScalars scalars_;
  at::Tensor loss_scale_;
  at::Tensor good_steps_;  // int32: steps since the loss scale changed.
  at::Tensor nonfinite_;   // 0 or 1, as the next two: loss or gradient of this step are not finite.
  at::Tensor spike_;
  at::Tensor ended_;                   // A bad step ended the run.
  at::Tensor overflowed_;              // Some step overflowed the expert capacity and was not replayed yet.
  at::Tensor threshold_;               // For spikes.
  at::Tensor norms_;                   // [window]: norm of step s at s % window; NaN if skipped or unknown.
  at::Tensor norms_index_;             // int64: index into norms_ of the step that has begun.
  std::array<at::Tensor, 2> results_;  // On the host, pinned for CUDA; see WriteResult().
};

}  // namespace fsdpd
