#include "fsdp/engine/hidden_places.h"

#include <tuple>
#include <utility>

#include "base/check.h"

namespace fsdpd {

HiddenPlaces::HiddenPlaces(const Plan& plan, const std::function<at::Tensor()>& make) {
  if (plan.layout.stage.count == 1) return;
  for (auto& of_way : tensors_) {
    for (at::Tensor& place : of_way) place = make();
  }
  Number(plan.program, plan.layout.stage);
  Number(plan.evaluation, plan.layout.stage);
}

const HiddenPlaces::Places& HiddenPlaces::Of(const Instruction& instruction) const {
  static const auto* const kNone = new Places();
  const auto found = places_.find(&instruction);
  return found == places_.end() ? *kNone : found->second;
}

// Hidden states and gradients are received in one order, and share buffers; each kind is sent in its own.

void HiddenPlaces::Number(const Program& program, const StagePlace& stage) {
  std::map<std::tuple<Op, int, int>, at::Tensor> of_stage_transfer;
  std::array<int, 3> next{};
  for (const Instruction& i : program.instructions) {
    if (StageTransferOf(i.op) == StageTransfer::kNone || i.micro_batch < 0) continue;
    const bool comes = StageTransferOf(i.op) == StageTransfer::kReceives;
    const Way way = comes ? kIn : i.op == Op::kSend ? kHiddenOut : kGradOut;
    const at::Tensor& place = tensors_[way][next[way]++ % kStageTransferSlots];
    of_stage_transfer[{i.op, i.unit, i.micro_batch}] = place;
    (comes ? places_[&i].in : places_[&i].out) = place;
  }
  for (const Instruction& i : program.instructions) {
    const bool forward = i.op == Op::kForward || i.op == Op::kForwardBackward, back = GivesInputGrad(i.op);
    const auto place = [&](Op op) {
      const auto found = of_stage_transfer.find({op, i.unit, i.micro_batch});
      FSDPD_CHECK(found != of_stage_transfer.end());
      return found->second;
    };
    if (forward && stage.Enters(i.unit)) places_[&i].in = place(Op::kReceive);
    if (forward && stage.Leaves(i.unit)) places_[&i].out = place(Op::kSend);
    if (back && stage.Leaves(i.unit)) places_[&i].in = place(Op::kReceiveGrad);
    if (back && stage.Enters(i.unit)) places_[&i].out = place(Op::kSendGrad);
  }
}

}  // namespace fsdpd
