#include "fsdp/engine/operations/stage_buffers.h"

#include <ATen/ops/empty.h>

#include <tuple>
#include <utility>

#include "base/check.h"
#include "fsdp/torch/scalar_type.h"

namespace fsdpd {
namespace {

// Shape of hidden states between stages, as UnitInput documents it.
at::Tensor MakeHidden(const Plan& plan, const MeshPosition& position, at::Device device) {
  const StagePlace& stage = plan.layout.stage;
  const at::TensorOptions options = at::TensorOptions().dtype(ScalarTypeOf(stage.hidden_type)).device(device);
  const auto* llama = std::get_if<LlamaConfig>(&plan.spec.model);
  if (llama == nullptr) return at::empty({stage.hidden_elements}, options);
  const int64_t width = llama->hidden_size;
  if (position.SizeOf(Group::kTensor) > 1)
    return at::empty({1, stage.hidden_elements / width, width}, options);
  return at::empty({plan.spec.micro_batch, plan.spec.SequenceOf(position.rank).tokens(), width}, options);
}

}  // namespace

StageBuffers::StageBuffers(const Plan& plan, const MeshPosition& position, at::Device device) {
  if (plan.layout.stage.count == 1) return;
  for (auto& of_direction : tensors_) {
    for (at::Tensor& buffer : of_direction) buffer = MakeHidden(plan, position, device);
  }
  AssignBuffers(plan.program, plan.layout.stage);
  AssignBuffers(plan.evaluation, plan.layout.stage);
}

const StageBuffers::Buffers& StageBuffers::Of(const Instruction& instruction) const {
  static const auto* const kNoBuffers = new Buffers();
  const auto found = by_instruction_.find(&instruction);
  return found == by_instruction_.end() ? *kNoBuffers : found->second;
}

// Hidden states and gradients are received in one order, and share buffers; each kind is sent in its own.
void StageBuffers::AssignBuffers(const Program& program, const StagePlace& stage) {
  std::map<std::tuple<Op, int, int>, at::Tensor> of_stage_transfer;
  std::array<int, 3> next{};
  for (const Instruction& i : program.instructions) {
    if (StageTransferOf(i.op) == StageTransfer::kNone || i.micro_batch < 0) continue;
    const bool receives = StageTransferOf(i.op) == StageTransfer::kReceives;
    const Direction direction = receives ? kIn : i.op == Op::kSend ? kHiddenOut : kGradOut;
    const at::Tensor& buffer = tensors_[direction][next[direction]++ % kStageTransferSlots];
    of_stage_transfer[{i.op, i.unit, i.micro_batch}] = buffer;
    (receives ? by_instruction_[&i].in : by_instruction_[&i].out) = buffer;
  }
  for (const Instruction& i : program.instructions) {
    const bool forward = i.op == Op::kForward || i.op == Op::kForwardBackward, back = GivesInputGrad(i.op);
    const auto buffer = [&](Op op) {
      const auto found = of_stage_transfer.find({op, i.unit, i.micro_batch});
      FSDPD_CHECK(found != of_stage_transfer.end());
      return found->second;
    };
    if (forward && stage.ReceivesInput(i.unit)) by_instruction_[&i].in = buffer(Op::kReceive);
    if (forward && stage.SendsOutput(i.unit)) by_instruction_[&i].out = buffer(Op::kSend);
    if (back && stage.SendsOutput(i.unit)) by_instruction_[&i].in = buffer(Op::kReceiveGrad);
    if (back && stage.ReceivesInput(i.unit)) by_instruction_[&i].out = buffer(Op::kSendGrad);
  }
}

}  // namespace fsdpd
