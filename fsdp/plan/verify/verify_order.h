// What must be complete before what, over two steps in a row, by lanes and dependencies alone (rule 1). Two
// are enough: an edge goes to the same step or the one before, so a path between neighbouring steps stays in
// them, and what follows by itself from step to step follows for all later ones.
#pragma once

#include <absl/status/statusor.h>

#include <array>

#include "fsdp/plan/verify/verify_case.h"

namespace fsdpd {

// An instruction of the first or of the second step: its index, plus the count of instructions for the
// second.
using Moment = int;

class StepOrder {
 public:
  // REQUIRES: lanes that exist (CheckShape), and that `verified` outlives the result. An error names what
  // breaks rule 1.
  static absl::StatusOr<StepOrder> Make(const VerifyCase& verified);

  // `first` is complete before `second` starts.
  bool Before(Moment first, Moment second) const {
    return first != second && clock_[second][LaneOf(first)] >= place_[first];
  }

  int IndexOf(Moment moment) const { return moment % verified_->count(); }
  int StepOf(Moment moment) const { return moment / verified_->count(); }
  size_t LaneOf(Moment moment) const { return static_cast<size_t>(verified_->At(IndexOf(moment)).lane); }

  // "#3 Gather layer.0 of the step after": relative to `other`, which is not later.
  std::string Name(Moment moment, Moment other) const;

 private:
  // How many instructions of each lane are complete when one is.
  using Clock = std::array<int, kLanes>;

  explicit StepOrder(const VerifyCase& verified) : verified_(&verified) {}
  void AddStep();

  const VerifyCase* verified_;
  std::vector<int> place_;  // 1-based, within the lane, over both steps.
  std::vector<Clock> clock_;
  std::array<Clock, kLanes> last_{};
};

}  // namespace fsdpd
