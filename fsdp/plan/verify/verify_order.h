// Happens-before order of two consecutive steps, from lanes and dependencies only (rule 1). Two steps are
// enough: a dependency stays within a step or points to the previous one, so a path between adjacent steps
// stays within the two, and all later steps follow by induction.
#pragma once

#include <absl/status/statusor.h>

#include <array>

#include "fsdp/plan/verify/verify_case.h"

namespace fsdpd {

// An instruction of one of the two steps: its index, plus the instruction count for the second step.
using EventIndex = int;

class HappensBefore {
 public:
  // REQUIRES: valid lanes (CheckShape), and that `verified` outlives the result. An error names the violation
  // of rule 1.
  static absl::StatusOr<HappensBefore> Make(const VerifyCase& verified);

  // `first` completes before `second` starts.
  bool Before(EventIndex first, EventIndex second) const {
    return first != second && clock_[second][LaneOf(first)] >= place_[first];
  }

  int IndexOf(EventIndex event) const { return event % verified_->count(); }
  int StepOf(EventIndex event) const { return event / verified_->count(); }
  size_t LaneOf(EventIndex event) const { return static_cast<size_t>(verified_->At(IndexOf(event)).lane); }

  // "#3 Gather layer.0 of the step after": relative to `other`, which is not later.
  std::string Name(EventIndex event, EventIndex other) const;

 private:
  // Vector clock: instructions complete per lane when an instruction completes.
  using Clock = std::array<int, kLanes>;

  explicit HappensBefore(const VerifyCase& verified) : verified_(&verified) {}
  void AddStep();

  const VerifyCase* verified_;
  std::vector<int> place_;  // Position within the lane, 1-based, over both steps.
  std::vector<Clock> clock_;
  std::array<Clock, kLanes> last_{};
};

}  // namespace fsdpd
