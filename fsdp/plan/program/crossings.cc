#include "fsdp/plan/program/crossings.h"

#include <utility>

namespace fsdpd {
namespace {

// Runs through the stage for which what they need may be there while another runs.
constexpr size_t kRunsAhead = 1;

bool GoesForward(const Pass& pass) { return pass.op == Op::kForward; }

}  // namespace

// A run forward begins at the first unit, one back at the last. The last stage's goes back where it ended:
// there the first unit's pass begins a run, whatever it is.
Crossings::Crossings(const Layout& layout, const Schedule& passes, ProgramWriter* writer)
    : layout_(layout), passes_(passes), writer_(writer), received_(passes.size(), -1) {
  const int last_unit = static_cast<int>(layout.units.size()) - 1;
  const bool needs_hidden = !layout.stage.first(), needs_grad = !layout.stage.last();
  for (size_t i = 0; i < passes.size(); ++i) {
    const bool enters = passes[i].unit == 0 && passes[i].op != Op::kBackward;
    const bool returns = passes[i].unit == last_unit && passes[i].op == Op::kBackward;
    if ((enters && needs_hidden) || (returns && needs_grad)) begins_.push_back(static_cast<int>(i));
  }
}

void Crossings::ReceiveWhatMayStart(int pass) {
  size_t begun = 0;
  while (begun < begins_.size() && begins_[begun] < pass) ++begun;
  const bool begins = begun < begins_.size() && begins_[begun] == pass;
  for (; next_ < begins_.size() && next_ < begun + (begins ? 1 : 0) + kRunsAhead; ++next_) {
    const Pass& needs = passes_[begins_[next_]];
    const bool hidden = needs.op != Op::kBackward;
    received_[begins_[next_]] = Append(hidden ? Op::kReceive : Op::kReceiveGrad, needs, {});
    if (first_receive_ < 0) first_receive_ = received_[begins_[next_]];
  }
}

void Crossings::SendAfter(int pass) {
  const Pass& ended = passes_[pass];
  const int last_unit = static_cast<int>(layout_.units.size()) - 1;
  const int run = writer_->last(LaneId::kCompute);
  if (GoesForward(ended) && ended.unit == last_unit && !layout_.stage.last()) Append(Op::kSend, ended, {run});
  if (!GoesForward(ended) && ended.unit == 0 && !layout_.stage.first()) Append(Op::kSendGrad, ended, {run});
}

int Crossings::Append(Op op, const Pass& pass, std::vector<int> after) {
  Instruction crossing;
  crossing.op = op;
  crossing.unit = pass.unit;
  crossing.micro_batch = pass.micro_batch;
  return writer_->Append(std::move(crossing), std::move(after));
}

}  // namespace fsdpd
