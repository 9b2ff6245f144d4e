// Buffers between pipeline stages: the tensors that hold hidden states and their gradients between a stage's
// passes and its sends and receives. There are kStageTransferSlots fixed tensors per direction, reused
// round-robin in program order; the program's dependencies guarantee that a tensor is free again. A pass
// copies its input from a buffer and its output into one. So transfers allocate nothing, and no lane frees
// memory that another lane still reads.
//
// Thread safety: Of() from any lane; the program orders accesses to the tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <map>

#include "fsdp/plan/plan.h"

namespace fsdpd {

class StageBuffers {
 public:
  // The buffers of one instruction. `in`: filled by a Receive or ReceiveGrad, read by the pass that needs it.
  // `out`: filled by a pass, read by a Send or SendGrad. Undefined if the instruction transfers nothing.
  struct Buffers {
    at::Tensor in;
    at::Tensor out;
  };

  // Allocates and assigns buffers for both programs of the plan, which must outlive this object.
  StageBuffers(const Plan& plan, const MeshPosition& position, at::Device device);

  // REQUIRES: an instruction of the plan.
  const Buffers& Of(const Instruction& instruction) const;

 private:
  void AssignBuffers(const Program& program, const StagePlace& stage);

  enum Direction { kIn, kHiddenOut, kGradOut };
  std::array<std::array<at::Tensor, kStageTransferSlots>, 3> tensors_;  // By direction.
  std::map<const Instruction*, Buffers> by_instruction_;
};

}  // namespace fsdpd
