#include "fsdp/plan/program/staged_activations.h"

#include "fsdp/plan/model/activation_policy.h"

namespace fsdpd {

StagedActivations::StagedActivations(const Spec& spec, const ModelFacts& model, ProgramWriter* writer)
    : writer_(writer), moved_(model.units.size(), -1) {
  for (size_t u = 0; u < model.units.size(); ++u)
    offloaded_.push_back(OffloadsActivations(spec, model, static_cast<int>(u)));
}

// The first Backward of a micro-batch drops all units in flight, and the first fetches start: they overlap
// the backward of the last layers, which kept their activations on the device.
void StagedActivations::Before(const Pass& pass) {
  if (pass.op == Op::kForward && offloaded_[pass.unit] && in_flight_.size() == kStagedLayers)
    Drop(pass.micro_batch);
  if (pass.op != Op::kBackward || in_flight_.empty()) return;
  while (!in_flight_.empty()) Drop(pass.micro_batch);
  for (size_t n = 0; n < kStagedLayers; ++n) Fetch(pass.micro_batch);
}

int StagedActivations::WaitsFor(const Pass& pass) const {
  return pass.op == Op::kBackward && offloaded_[pass.unit] ? moved_[pass.unit] : -1;
}

void StagedActivations::After(const Pass& pass) {
  if (!offloaded_[pass.unit]) return;
  if (pass.op == Op::kForward) {
    moved_[pass.unit] =
        Append(Op::kOffloadActivations, pass.unit, pass.micro_batch, writer_->last(LaneId::kCompute));
    in_flight_.push_back(pass.unit);
  } else if (pass.op == Op::kBackward) {
    Fetch(pass.micro_batch);
  }
}

void StagedActivations::Drop(int micro_batch) {
  const int unit = in_flight_.front();
  in_flight_.pop_front();
  Append(Op::kDropActivations, unit, micro_batch, moved_[unit]);
  to_fetch_.push_back(unit);
}

void StagedActivations::Fetch(int micro_batch) {
  if (to_fetch_.empty()) return;
  const int unit = to_fetch_.back();
  to_fetch_.pop_back();
  moved_[unit] = Append(Op::kFetchActivations, unit, micro_batch, writer_->last(LaneId::kCompute));
}

int StagedActivations::Append(Op op, int unit, int micro_batch, int after) {
  return writer_->Append({op, unit, -1, micro_batch}, {after});
}

}  // namespace fsdpd
