// Happens-before order of two consecutive steps, from lanes and dependencies only (rule 1). Two steps are
// enough: a dependency stays within a step or points to the previous one, so a path between adjacent steps
// stays within the two, and all later steps follow by induction.
#pragma once

#include <absl/status/statusor.h>

#include <array>

#include "fsdp/plan/verify/verify_case.h"

namespace fsdpd {

// An instruction of one of the two steps: its index, plus the instruction count for the second step.
using Moment = int;

class StepOrder {
 public:
  // REQUIRES: valid lanes (CheckShape), and that `verified` outlives the result. An error names the violation
  // of rule 1.
  static absl::StatusOr<StepOrder> Make(const VerifyCase& verified);

  // `first` completes before `second` starts.
  bool Before(Moment first, Moment second) const {
    return first != second && clock_[second][LaneOf(first)] >= place_[first];
  }

  int IndexOf(Moment moment) const { return moment % verified_->count(); }
  int StepOf(Moment moment) const { return moment / verified_->count(); }
  size_t LaneOf(Moment moment) const { return static_cast<size_t>(verified_->At(IndexOf(moment)).lane); }

  // "#3 Gather layer.0 of the step after": relative to `other`, which is not later.
  std::string Name(Moment moment, Moment other) const;

 private:
  // Vector clock: instructions complete per lane when an instruction completes.
  using Clock = std::array<int, kLanes>;

  explicit StepOrder(const VerifyCase& verified) : verified_(&verified) {}
  void AddStep();

  const VerifyCase* verified_;
  std::vector<int> place_;  // Position within the lane, 1-based, over both steps.
  std::vector<Clock> clock_;
  std::array<Clock, kLanes> last_{};
};

}  // namespace fsdpd
