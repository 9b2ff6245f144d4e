#include "fsdp/plan/program/stage_transfers.h"

namespace fsdpd {
namespace {

// The transfer whose completion frees a slot.
int RoomAfter(const std::vector<int>& in_order) {
  return in_order.size() < kStageTransferSlots ? -1 : in_order[in_order.size() - kStageTransferSlots];
}

}  // namespace

// A forward turn starts at a run's first unit, a backward turn at its last. The model's last unit runs both
// in one pass, so there only the first unit's pass starts a turn.
StageTransfers::StageTransfers(const Layout& layout, const Schedule& passes, ProgramWriter* writer)
    : layout_(layout), passes_(passes), writer_(writer), received_(passes.size(), -1) {
  for (size_t i = 0; i < passes.size(); ++i) {
    if (passes[i].op == Op::kBackwardWeights) continue;
    const bool back = passes[i].op == Op::kBackward;
    if (back ? layout.stage.SendsOutput(passes[i].unit) : layout.stage.ReceivesInput(passes[i].unit))
      begins_.push_back(static_cast<int>(i));
  }
}

void StageTransfers::ReceiveFor(int pass) {
  if (begun_.size() == begins_.size() || begins_[begun_.size()] != pass) return;
  const bool hidden = passes_[pass].op != Op::kBackward;
  received_[pass] = Append(hidden ? Op::kReceive : Op::kReceiveGrad, passes_[pass], RoomAfter(begun_));
  if (first_receive_ < 0) first_receive_ = received_[pass];
}

std::vector<int> StageTransfers::WaitsFor(int pass) const {
  std::vector<int> waits = {received_[pass]};
  const Pass& runs = passes_[pass];
  if (runs.op == Op::kForward && layout_.stage.SendsOutput(runs.unit)) waits.push_back(RoomAfter(sends_));
  if (GivesInputGrad(runs.op) && layout_.stage.ReceivesInput(runs.unit))
    waits.push_back(RoomAfter(sends_grads_));
  return waits;
}

void StageTransfers::SendAfter(int pass) {
  const Pass& ended = passes_[pass];
  const int run = writer_->last(LaneId::kCompute);
  if (received_[pass] >= 0) begun_.push_back(run);
  if (ended.op == Op::kForward && layout_.stage.SendsOutput(ended.unit))
    sends_.push_back(Append(Op::kSend, ended, run));
  if (GivesInputGrad(ended.op) && layout_.stage.ReceivesInput(ended.unit))
    sends_grads_.push_back(Append(Op::kSendGrad, ended, run));
}

int StageTransfers::Append(Op op, const Pass& pass, int after) {
  return writer_->Append({op, pass.unit, -1, pass.micro_batch}, {after});
}

}  // namespace fsdpd
