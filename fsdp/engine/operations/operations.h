// Operations: what each instruction of a program does to tensors. They do not define the order (the program
// does) or when an instruction runs (the executor does). Which instructions communicate, and over which
// group, follows from the strategy and the mesh.
//
// Call order: BeginStep or BeginEvaluation, then Run for each instruction on its lane, then Result once the
// Norm or Loss has finished and before the second BeginStep after it. Each function runs on the lane chosen
// by the executor, with that lane's stream current; Result runs on the host.
//
// step_end.h implements Norm and Loss.
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

#include "fsdp/comm/connected_mesh.h"
#include "fsdp/data/batches.h"
#include "fsdp/engine/operations/gathered_bucket.h"
#include "fsdp/engine/operations/mesh_context.h"
#include "fsdp/engine/operations/offloaded_activations.h"
#include "fsdp/engine/operations/snapshot.h"
#include "fsdp/engine/operations/stage_buffers.h"
#include "fsdp/engine/operations/step_end.h"
#include "fsdp/memory/arena.h"
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
  StepResult Result(int result_slot) const { return step_end_.Result(result_slot); }

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

    void Load(const Batch& batch);
    void LoadDocuments(const Batch& batch);
  };

  void MakeBuffers();
  void MakeInputs();
  void MakeSquares();
  void BindUnit(int unit);
  absl::Status GatherReplica(const Instruction& instruction);
  absl::Status Gather(const Instruction& instruction);
  absl::Status Forward(const Instruction& instruction);
  absl::Status Backward(const Instruction& instruction);
  absl::Status BackwardWeights(const Instruction& instruction);
  absl::Status ForwardBackward(const Instruction& instruction);
  absl::Status TransferHidden(const Instruction& instruction);
  absl::Status ExchangeTiedGrad(const Instruction& instruction);
  void TakeReceived(const Instruction& instruction);
  // After a pass: returns errors of the unit's communication, and copies output for another stage.
  absl::Status FinishPass(const Instruction& instruction);
  void ZeroPadding(const Instruction& instruction);
  absl::Status Reduce(const Instruction& instruction);
  absl::Status ReduceInOneKernel(const Instruction& instruction);
  absl::Status ReduceOuter(const Instruction& instruction);
  const BucketShard& ShardOf(int bucket) const {
    return buffers_[bucket].state.defined() ? buffers_[bucket].staged : parts_.params->bucket(bucket);
  }
  void Update(int bucket);

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
  StepEnd step_end_;
  double expert_capacity_ = kExpertCapacity;
  std::vector<MicroBatch> micro_batches_;
  const StageBuffers stage_buffers_;
  bool evaluating_ = false;
  int result_slot_ = 0;

  // fp32 scalars on the device.
  at::Tensor grad_loss_;           // Gradient of the loss, where backward starts.
  at::Tensor recording_failures_;  // Number of ranks that could not record a step.
};

}  // namespace fsdpd
