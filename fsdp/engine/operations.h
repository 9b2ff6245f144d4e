// Operations: what each instruction of a program does to tensors. They do not define the order (the program
// does) or when an instruction runs (the executor does). Which instructions communicate, and over which
// group, follows from the strategy and the mesh.
//
// Call order: BeginStep or BeginEvaluation, then Run for each instruction on its lane, then Result once the
// Norm or Loss has finished and before the second BeginStep after it. Each function runs on the lane chosen
// by the executor, with that lane's stream current; Result runs on the host.
//
// Gradient scale: the loss is a sum over targets, and backward starts from loss_scale / T, where T is the
// number of tokens in the global batch. With `counted` targets that count in the loss,
//
//   reduced gradient = true gradient (of the mean loss) * loss_scale * counted / T
//
// Norm removes this factor from the norm and puts it into the divisor that Update applies; nothing else
// scales.
//
// Bad steps: no rank applies a step whose gradient or loss is not finite, or whose gradient norm is a spike
// (if the spec enables spike detection). Norm computes the decision as a flag on the device, from all-reduced
// values. The history of norms for spike detection is on the device too, so nothing waits for the host, and a
// step submitted ahead is judged with the previous step's norm in the history. If the run ends with a bad
// step, the flag stays set, since the host may have submitted another step.
//
// Expert overflow: if the experts of any rank receive more tokens than their capacity
// (MeshContext::ExpertCapacity), no rank applies the step or any that follows it. The host raises the
// capacity and replays these steps.
//
// Routing biases that are adjusted by expert load (Bucket::balances) are updated by the same Update
// instruction as trained parameters. Norm all-reduces the load of each expert and computes the bias change,
// which is 0 for a skipped step.
//
// Thread safety: no locks; the program's dependencies order accesses to shared tensors. Exceptions of
// LibTorch pass through (lanes catch them).
#pragma once

#include <ATen/core/Tensor.h>
#include <absl/status/status.h>

#include <array>
#include <cmath>
#include <memory>
#include <vector>

#include "fsdp/checkpoint/job/training_state.h"
#include "fsdp/comm/mesh.h"
#include "fsdp/data/batches.h"
#include "fsdp/engine/gathered_bucket.h"
#include "fsdp/engine/mesh_context.h"
#include "fsdp/engine/offloaded_activations.h"
#include "fsdp/engine/snapshot.h"
#include "fsdp/engine/stage_buffers.h"
#include "fsdp/memory/arena.h"
#include "fsdp/model/native/fp8_watch.h"
#include "fsdp/model/unit/unit.h"
#include "fsdp/optimizer/grad_norm.h"
#include "fsdp/optimizer/make_optimizer.h"
#include "fsdp/optimizer/sharded_params.h"
#include "fsdp/plan/model/expert_capacity.h"
#include "fsdp/plan/plan.h"

namespace fsdpd {

// The objects that instructions act on. Owned by the trainer; must outlive the operations.
struct OperationParts {
  const Plan* plan = nullptr;
  at::Device device = at::kCPU;
  std::vector<std::unique_ptr<Unit>>* units = nullptr;
  ShardedParams* params = nullptr;
  const Arena* arena = nullptr;
  const ConnectedMesh* mesh = nullptr;
  TrainingState start;                        // State before the first step.
  Snapshot* snapshot = nullptr;               // Null: the job does not save.
  OffloadedActivations* offloaded = nullptr;  // Null: activations stay on the device.
};

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

class Operations {
 public:
  // On the compute lane: units create their views here, and CUDA autograd remembers the stream.
  explicit Operations(const OperationParts& parts);

  // On the compute lane, after the previous step's Norm; its updates may still be pending. Copies the
  // micro-batches of this rank to the device. The batches must be pinned: from pageable memory the host would
  // wait for the stream, and so for the previous step. The result goes to `result_slot` (0 or 1), so that the
  // next step may run before the host has read it.
  void BeginStep(const StepInputs& inputs, const std::vector<Batch>& batches, int result_slot);
  void BeginEvaluation(const Batch& batch, int result_slot);

  // `saves`: whether the instruction's step takes a snapshot.
  absl::Status Run(const Instruction& instruction, bool saves);

  // OK if a step can be recorded and replayed by the device, except for BeginStep: all inputs that change
  // from step to step have fixed addresses, except for the result slot. FAILED_PRECONDITION with the reason
  // otherwise.
  absl::Status Recordable() const;
  // Before a step is recorded; all launches of the recording write to `result_slot`. Call ForgetRecording if
  // the recording failed, before another attempt.
  void BeginRecording(int result_slot);
  void ForgetRecording();
  // On the compute lane, by all ranks, with no step open: sets the expert capacity and applies steps again.
  void GrowExpertCapacity(double expert_capacity);

  // On the reduce lane, by all ranks. RecordingFailures() counts the ranks that could not record, after the
  // host has waited for it.
  absl::Status ReduceRecordingFailures(bool recorded);
  int64_t RecordingFailures() const { return std::llround(recording_failures_.item<float>()); }

  // REQUIRES: the host has waited for the slot's Norm or Loss. Does not touch the device.
  StepResult Result(int result_slot) const;

 private:
  struct BucketBuffers {
    GatheredBucket gathered;
    at::Tensor replica;  // This and the next are flat; undefined if the program has no such buffer.
    at::Tensor reduce;
    at::Tensor wire;
    at::Tensor sums;
    at::Tensor squares;  // Part of squares_, if the reduction computes them; otherwise undefined.
    std::vector<at::Tensor> padding;  // Views of `reduce`.
    at::Tensor state;                 // Staging buffer on the device for state in host memory, in bytes.
    BucketShard staged;               // Views of `state` that the optimizer updates.
  };
  struct MicroBatch {
    UnitInput input;           // input.hidden moves from unit to unit.
    at::Tensor bounds_buffer;  // Storage of input.documents.bounds, whose length varies.
    at::Tensor grad_hidden;    // Moves from unit to unit in backward.
  };

  void MakeBuffers();
  void MakeScalars();
  void MakeInputs();
  void MakeSquares();
  void BindUnit(int unit);
  void SetCounted(int64_t counted);
  void LoadBatch(const Batch& batch, MicroBatch* to) const;
  void LoadDocuments(const Batch& batch, MicroBatch* to) const;
  absl::Status GatherReplica(const Instruction& instruction);
  absl::Status Gather(const Instruction& instruction);
  absl::Status Forward(const Instruction& instruction);
  absl::Status Backward(const Instruction& instruction);
  absl::Status BackwardWeights(const Instruction& instruction);
  absl::Status ForwardBackward(const Instruction& instruction);
  absl::Status TransferHidden(const Instruction& instruction);
  absl::Status ExchangeTiedGrad(const Instruction& instruction);
  at::Tensor MakeHidden() const;
  void TakeReceived(const Instruction& instruction);
  // After a pass: returns errors of the unit's communication, and copies output for another stage.
  absl::Status FinishPass(const Instruction& instruction);
  void ZeroPadding(const Instruction& instruction);
  absl::Status Reduce(const Instruction& instruction);
  absl::Status ReduceInOneKernel(const Instruction& instruction);
  absl::Status ReduceOuter(const Instruction& instruction);
  absl::Status Norm(const Instruction& instruction);
  at::Tensor ExpertLoads(int64_t begin, int64_t experts) const {
    return sums_.narrow(0, kStepAllReduceSize + begin, experts);
  }
  void DiscardNanOverflow();
  void DecideSkip(const at::Tensor& norm);
  void UpdateLossScale(const at::Tensor& used);
  void RecordNorm(const at::Tensor& norm);
  void ComputeBiasSteps();
  const BucketShard& ShardOf(int bucket) const {
    return buffers_[bucket].state.defined() ? buffers_[bucket].staged : parts_.params->bucket(bucket);
  }
  void Update(int bucket);
  void DetectSpike(const at::Tensor& norm);
  absl::Status Loss(const Instruction& instruction);
  void WriteResult(const at::Tensor& norm, const at::Tensor& loss_scale);

  const Spec& spec() const { return parts_.plan->spec; }
  const Layout& layout() const { return parts_.plan->layout; }
  const Bucket& BucketOf(const Instruction& instruction) const {
    return layout().buckets[instruction.bucket];
  }
  Unit* UnitOf(const Instruction& instruction) const { return (*parts_.units)[instruction.unit].get(); }
  bool IsOffloaded(int unit) const { return parts_.offloaded != nullptr && parts_.offloaded->Has(unit); }
  // The communicator for an instruction.
  Communicator* GroupOf(const Instruction& i) const { return parts_.mesh->Find(i.group, i.role); }
  const MeshPosition& position() const { return parts_.mesh->position(); }

  const OperationParts parts_;
  std::unique_ptr<Optimizer> optimizer_;
  std::vector<BucketBuffers> buffers_;       // By bucket.
  std::unique_ptr<SideStream> side_stream_;  // For communication of units that overlaps with their compute.
  std::vector<std::unique_ptr<MeshContext>> contexts_;  // By unit.
  std::vector<std::vector<at::Tensor>> param_grads_;    // By unit, as in ParamGrads.
  GradSquares squares_;                                 // Partial sums of squares for the norm.
  std::unique_ptr<Fp8Watch> fp8_watch_;                 // Null without FP8.
  const bool may_overflow_;                             // Whether experts may exceed their capacity.
  double expert_capacity_ = kExpertCapacity;
  std::vector<MicroBatch> micro_batches_;
  const StageBuffers stage_buffers_;
  bool evaluating_ = false;
  int result_slot_ = 0;

  // fp32 scalars on the device.
  at::Tensor sums_;           // Local, then all-reduced: kStepAllReduceSize values, then Layout::choices.
  at::Tensor bias_steps_;     // [Layout::choices]: change of the routing biases.
  at::Tensor grad_loss_;      // Gradient of the loss, where backward starts.
  at::Tensor learning_rate_;  // For the step that has begun; copied to scalars_ in its Norm.
  StepScalars scalars_;       // Read by the updates.
  at::Tensor loss_scale_;
  at::Tensor good_steps_;  // int32: steps since the loss scale changed.
  at::Tensor nonfinite_;   // 0 or 1, as the next two: loss or gradient of this step are not finite.
  at::Tensor spike_;
  at::Tensor ended_;                   // A bad step ended the run.
  at::Tensor overflowed_;              // Some step overflowed the expert capacity and was not replayed yet.
  at::Tensor threshold_;               // For spikes.
  at::Tensor norms_;                   // [window]: norm of step s at s % window; NaN if skipped or unknown.
  at::Tensor recording_failures_;      // Number of ranks that could not record a step; preallocated.
  at::Tensor norms_index_;             // int64: index into norms_ of the step that has begun.
  std::array<at::Tensor, 2> results_;  // On the host, pinned for CUDA; see WriteResult().
};

}  // namespace fsdpd
