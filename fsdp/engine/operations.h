// What each of a program's instructions does to tensors. It knows operations, not their order: the executor
// says when, the program decides. Which of them communicate, and over what, is the strategy's and the mesh's
// matter.
//
// Call order: BeginStep or BeginEvaluation, then Run for each instruction on its lane; Result once the Norm
// or Loss is done, and before the second BeginStep after. Each function runs on the lane that the executor
// chose, with that lane's stream current; Result on the host.
//
// Scale: backward starts from loss scale / tokens of the global batch, for a loss that is a sum over targets.
// So the reduced gradient is the true one, of the mean over the targets that count, times
// loss scale x counted / tokens. Norm has that factor out of the norm and into the divisor which Update
// applies; nothing else scales.
//
// A bad step updates nothing, on every rank together: one whose gradient or loss is not finite, or whose
// gradient norm is a spike where the spec looks for such. Norm leaves a flag on the device, computed from
// sums that all ranks share; the norms that a spike is judged by are there too, so nothing waits for the
// host, and a step that is submitted ahead is judged by the one before it. Where the run ends with a bad step
// the flag stays up, since the host may have submitted a step more.
//
// Nor does one update anything whose experts had too little room (MeshContext::ExpertCapacity) on some rank,
// or any that follows it: the host makes room and submits them again.
//
// Selection biases that experts' choices move (Bucket::balances) have an Update as what is trained has: Norm,
// where all ranks' choices are summed, leaves what to add, nothing in a step that is skipped.
//
// Thread safety: the program's dependencies order all shared tensors; there is no lock. LibTorch's exceptions
// pass through (lanes catch them).
#pragma once

#include <ATen/core/Tensor.h>
#include <absl/status/status.h>

#include <array>
#include <cmath>
#include <memory>
#include <vector>

#include "fsdp/checkpoint/training_state.h"
#include "fsdp/comm/mesh.h"
#include "fsdp/data/batches.h"
#include "fsdp/engine/gathered_bucket.h"
#include "fsdp/engine/hidden_places.h"
#include "fsdp/engine/mesh_context.h"
#include "fsdp/engine/offloaded_activations.h"
#include "fsdp/engine/snapshot.h"
#include "fsdp/memory/arena.h"
#include "fsdp/model/native/fp8_watch.h"
#include "fsdp/model/unit/unit.h"
#include "fsdp/optimizer/grad_norm.h"
#include "fsdp/optimizer/make_optimizer.h"
#include "fsdp/optimizer/sharded_params.h"
#include "fsdp/plan/model/expert_capacity.h"
#include "fsdp/plan/plan.h"

namespace fsdpd {

// Everything that instructions act on. Owned by the trainer; outlives the operations.
struct OperationParts {
  const Plan* plan = nullptr;
  at::Device device = at::kCPU;
  std::vector<std::unique_ptr<Unit>>* units = nullptr;
  ShardedParams* params = nullptr;
  const Arena* arena = nullptr;
  const ConnectedMesh* mesh = nullptr;
  TrainingState start;                   // What the first step goes on from.
  Snapshot* snapshot = nullptr;          // Null: nothing is saved.
  OffloadedActivations* kept = nullptr;  // Null: layers keep all on the device.
};

// What the host has decided of a step when it submits it.
struct StepOrder {
  int64_t step = 0;
  double learning_rate = 0;
  bool saves = false;  // Its snapshot is taken. The same on all ranks.
  bool asks = false;   // This rank asks all for a checkpoint (save_schedule.h).
};

// Of a step or of one round of evaluation; the same on all ranks.
struct StepResult {
  double loss_sum = 0;  // Over the targets that count.
  int64_t counted = 0;
  double grad_norm = 0;        // Of the true gradient, before clipping.
  double loss_scale = 1;       // That the step ran with.
  bool not_finite = false;     // Loss or gradient, and nothing was updated.
  bool spike = false;          // Nothing was updated either: grad_norm is above the threshold.
  double spike_threshold = 0;  // Infinite where too few norms are known; 0 where nobody looks for spikes.
  // As TrainingState's.
  double next_loss_scale = 1;
  int64_t good_steps = 0;
  bool asked = false;                             // Some rank has, for a checkpoint.
  bool expert_overflow = false;                   // Some rank has, for experts: nothing here is of use.
  std::array<double, kRoutingSums> routing = {};  // Over all tokens and layers with experts.
  std::array<double, kFp8Told> fp8 = {};          // Fp8Watch::Told() of this rank.

  bool skipped() const { return not_finite || spike; }
  double loss() const { return loss_sum / static_cast<double>(counted > 0 ? counted : 1); }
};

class Operations {
 public:
  // On the compute lane: units take their views here, and CUDA's autograd remembers the stream.
  explicit Operations(const OperationParts& parts);

  // On the compute lane, when the step before has come to its Norm: its updates may still be due. Moves the
  // batches of this rank's micro-batches to the device; from pageable memory the host would wait for the
  // stream, and with it for the step before. The result goes to `result_slot`, 0 or 1, so that the
  // next step may run before the host has read this one's.
  void BeginStep(const StepOrder& order, const std::vector<Batch>& batches, int result_slot);
  void BeginEvaluation(const Batch& batch, int result_slot);

  // `saves`: the step that the instruction is part of.
  absl::Status Run(const Instruction& instruction, bool saves);

  // That a step's instructions may be recorded and done again by the device alone, BeginStep apart: all that
  // changes from step to step has fixed places there, but for the result's. FAILED_PRECONDITION says why not.
  absl::Status Recordable() const;
  // Before a step is recorded, whose result goes to `result_slot` in each launch. When that failed, and what
  // was recorded so far is done anew, ForgetRecording.
  void BeginRecording(int result_slot);
  void ForgetRecording();
  // On the compute lane, by all ranks, with no step open: from here on experts have so much room, and steps
  // count again.
  void GrowExpertCapacity(double expert_capacity);

  // On the reduce lane, by all ranks. How many ranks have said no is known once the host has waited for it.
  absl::Status Vote(bool yes);
  int64_t Refusals() const { return std::llround(refusals_.item<float>()); }

  // REQUIRES: the host has waited for the slot's Norm or Loss. Touches no device.
  StepResult Result(int result_slot) const;

 private:
  struct BucketBuffers {
    GatheredBucket gathered;
    at::Tensor replica;  // Flat, as are the others; undefined where the program has none.
    at::Tensor reduce;
    at::Tensor wire;
    at::Tensor sums;
    at::Tensor squares;               // Of the sums, where they come with them: a part of squares_.
    std::vector<at::Tensor> padding;  // Of `reduce`.
    at::Tensor state;                 // Bytes on the device for what lies in host memory.
    BucketShard staged;               // Likewise: what the optimizer works on.
  };
  struct MicroBatch {
    UnitInput input;         // Hidden states move through it from unit to unit.
    at::Tensor bounds_room;  // Where input.documents.bounds is, of which there may be more or fewer.
    at::Tensor grad_hidden;  // Moves back.
  };

  void MakeBuffers();
  void MakeScalars();
  void MakeInputs();
  void MakeSquares();
  void BindUnit(int unit);
  void SetCounted(int64_t counted);
  void LoadBatch(const Batch& batch, MicroBatch* to) const;
  void LoadDocuments(const Batch& batch, MicroBatch* to) const;
  absl::Status Publish(const Instruction& instruction);
  absl::Status Gather(const Instruction& instruction);
  absl::Status Forward(const Instruction& instruction);
  absl::Status Backward(const Instruction& instruction);
  absl::Status BackwardWeights(const Instruction& instruction);
  absl::Status ForwardBackward(const Instruction& instruction);
  absl::Status Cross(const Instruction& instruction);
  absl::Status CrossTwin(const Instruction& instruction);
  at::Tensor MakeHidden() const;
  void TakeReceived(const Instruction& instruction);
  // After a pass, whose unit's exchanges may have failed.
  absl::Status HandOver(const Instruction& instruction);
  void ZeroPadding(const Instruction& instruction);
  absl::Status Reduce(const Instruction& instruction);
  absl::Status ReduceInOneKernel(const Instruction& instruction);
  absl::Status ReduceOuter(const Instruction& instruction);
  absl::Status Norm(const Instruction& instruction);
  at::Tensor Choices(int64_t begin, int64_t experts) const {
    return sums_.narrow(0, kStepAllReduceSize + begin, experts);
  }
  void KeepLackOfRoom();
  void Judge(const at::Tensor& norm);
  void MoveLossScale(const at::Tensor& used);
  void KeepNorm(const at::Tensor& norm);
  void WeighChoices();
  const BucketShard& ShardOf(int bucket) const {
    return buffers_[bucket].state.defined() ? buffers_[bucket].staged : parts_.params->bucket(bucket);
  }
  void Update(int bucket);
  void JudgeSpike(const at::Tensor& norm);
  absl::Status Loss(const Instruction& instruction);
  void PublishResult(const at::Tensor& norm, const at::Tensor& loss_scale);

  const Spec& spec() const { return parts_.plan->spec; }
  const Layout& layout() const { return parts_.plan->layout; }
  const Bucket& BucketOf(const Instruction& instruction) const {
    return layout().buckets[instruction.bucket];
  }
  Unit* UnitOf(const Instruction& instruction) const { return (*parts_.units)[instruction.unit].get(); }
  bool KeepsAway(int unit) const { return parts_.kept != nullptr && parts_.kept->Has(unit); }
  // The communicator that the instruction names.
  Communicator* GroupOf(const Instruction& i) const { return parts_.mesh->Find(i.group, i.role); }
  const MeshPosition& position() const { return parts_.mesh->position(); }

  const OperationParts parts_;
  std::unique_ptr<Optimizer> optimizer_;
  std::vector<BucketBuffers> buffers_;                  // By bucket.
  std::unique_ptr<Aside> aside_;                        // For what units exchange while they compute.
  std::vector<std::unique_ptr<MeshContext>> contexts_;  // By unit.
  std::vector<std::vector<at::Tensor>> param_grads_;    // By unit, as ParamGrads wants them.
  GradSquares squares_;                                 // What the norm is made of.
  std::unique_ptr<Fp8Watch> fp8_watch_;                 // Where something is rounded to FP8.
  const bool may_lack_room_;                            // For experts.
  double expert_capacity_ = kExpertCapacity;
  std::vector<MicroBatch> micro_batches_;
  const HiddenPlaces stage_transfer_;
  bool evaluating_ = false;
  int result_slot_ = 0;

  // fp32 scalars on the device.
  at::Tensor sums_;  // Of this rank, then of all: kStepAllReduceSize says which, and then Layout::choices.
  at::Tensor bias_steps_;     // [Layout::choices]: what the updates of selection biases add.
  at::Tensor grad_loss_;      // What backward starts from.
  at::Tensor learning_rate_;  // Of the step that has begun; scalars_ has it from its Norm on.
  StepScalars scalars_;       // What the updates read.
  at::Tensor loss_scale_;
  at::Tensor good_steps_;  // int32: since the loss scale changed.
  at::Tensor unfinished_;  // 0 or 1, as the next two: loss or gradient of this step are not finite.
  at::Tensor spike_;
  at::Tensor ended_;      // A step of this run was bad, and the run ends with it.
  at::Tensor overrun_;    // One lacked room, and has not been submitted again.
  at::Tensor threshold_;  // Of a spike.
  at::Tensor norms_;  // [window]: of step s at s modulo the window, NaN where it was skipped or is not known.
  at::Tensor refusals_;                // Ranks that voted no; no allocation of a step.
  at::Tensor norms_place_;             // int64: of the step that has begun.
  std::array<at::Tensor, 2> results_;  // On the host, pinned with CUDA, in the order of PublishResult().
};

}  // namespace fsdpd
