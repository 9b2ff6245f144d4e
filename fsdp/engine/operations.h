// What each of a program's instructions does to tensors. It knows operations, not their order: the executor
// says when, the program decides. Whether a gather or a reduction communicates is the layout's matter:
// parameters that are not sharded are cast locally and their gradients all-reduced.
//
// Call order: BeginStep, then Run for each instruction on its lane, then Result. Each function runs on the
// lane that the executor chose, with that lane's stream current. Gradient scale: the last unit's backward
// starts from 1 / (micro-batches of the whole step over all ranks); nothing else scales, so a sum over ranks
// and micro-batches is the mean over the global batch. Thread safety: the program's dependencies order all
// shared tensors; there is no lock. LibTorch's exceptions pass through (lanes catch them).
#pragma once

#include <ATen/core/Tensor.h>
#include <absl/status/status.h>

#include <map>
#include <memory>
#include <vector>

#include "fsdp/comm/communicator.h"
#include "fsdp/data/batches.h"
#include "fsdp/engine/adamw.h"
#include "fsdp/engine/sharded_params.h"
#include "fsdp/memory/arena.h"
#include "fsdp/model/unit.h"
#include "fsdp/plan/plan.h"

namespace fsdpd {

// Everything that instructions act on. Owned by the trainer; outlives the operations.
struct OperationParts {
  const Plan* plan = nullptr;
  int rank = 0;
  at::Device device = at::kCPU;
  std::vector<std::unique_ptr<Unit>>* units = nullptr;
  ShardedParams* params = nullptr;
  const Arena* arena = nullptr;
  Communicator* gather = nullptr;
  Communicator* reduce = nullptr;
};

class Operations {
 public:
  // On the compute lane: units take their views here, and CUDA's autograd remembers the stream.
  explicit Operations(const OperationParts& parts);

  // On the compute lane. Moves the batches of this rank's micro-batches to the device.
  void BeginStep(int64_t step, double learning_rate, const std::vector<Batch>& batches);

  absl::Status Run(const Instruction& instruction);

  // Loss and gradient norm of the step, the same on all ranks. Waits for the device: the step's one host
  // synchronisation, after all lanes are done.
  struct StepResult {
    double loss = 0;
    double grad_norm = 0;
  };
  StepResult Result() const;

 private:
  struct GradientBucket {
    at::Tensor flat;
    std::vector<at::Tensor> params;
    std::vector<at::Tensor> padding;
  };
  struct MicroBatch {
    UnitInput input;         // Hidden states move through it from unit to unit.
    at::Tensor grad_hidden;  // Moves back.
  };

  void BindUnit(int unit);
  GradientBucket MakeGradientBucket(const Buffer& buffer) const;
  const GradientBucket& GradientOf(const Instruction& instruction) const;
  absl::Status Gather(int unit);
  void Forward(int unit, int micro_batch);
  void Backward(const Instruction& instruction);
  absl::Status Reduce(const Instruction& instruction);
  absl::Status Norm();
  void Update(int unit);

  const Spec& spec() const { return parts_.plan->spec; }
  const UnitLayout& layout(int unit) const { return parts_.plan->layout.units[unit]; }
  bool IsLast(int unit) const { return unit + 1 == static_cast<int>(parts_.units->size()); }

  const OperationParts parts_;
  const bool sharded_;   // Parameters are cut over all ranks; else every rank has them all.
  const int64_t shard_;  // This rank's.
  AdamW adamw_;
  std::vector<at::Tensor> gathered_;         // Each unit's bucket, flat, in compute precision.
  std::map<int, GradientBucket> gradients_;  // By the program's buffer.
  std::vector<MicroBatch> micro_batches_;
  at::Tensor sums_;          // fp32 [2]: squares of the gradient, loss. Of this rank, after Norm of all.
  at::Tensor loss_;          // View of sums_[1].
  at::Tensor grad_divisor_;  // What brings the gradient to the clip norm; undefined without clipping.
};

}  // namespace fsdpd
