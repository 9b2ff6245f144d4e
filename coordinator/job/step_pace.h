// Stall detection of a running attempt by its own pace: a step that takes many times the usual duration may
// never end (a stopped rank, a collective without a peer). It detects that steps do not arrive, not which
// rank is the cause.
//
// Not thread-safe.
#pragma once

#include <absl/time/time.h>

#include "proto/fsdpd/v1/telemetry.pb.h"

namespace fsdpd {

class StepPace {
 public:
  // Starts waiting for a step at `now`: at the launch, and after a time in which no step could arrive (the
  // agent was disconnected, or the coordinator did not run).
  void WaitFrom(absl::Time now) {
    if (!stalled_) since_ = now;
  }
  // Takes rank 0's step report that follows `before` (empty for the attempt's first).
  void Take(const v1::StepReport& before, const v1::StepReport& step, absl::Time now);

  // Once stalled, only a step ends that state.
  bool Stalled(absl::Time now);
  absl::Time since() const { return since_; }  // Start of the wait for a step.

 private:
  absl::Time since_ = absl::InfiniteFuture();
  // Recent duration of a step, including the time between steps; 0: unknown.
  absl::Duration step_ = absl::ZeroDuration();
  bool stalled_ = false;
};

}  // namespace fsdpd
