// Whether a running attempt still makes steps, judged by the pace that it had: a step that takes many times
// what steps took is one that may never end (a stopped rank, a collective without a peer). It says that steps
// do not come, not why: which rank keeps them is not known here.
//
// One thread.
#pragma once

#include <absl/time/time.h>

#include "proto/fsdpd/v1/telemetry.pb.h"

namespace fsdpd {

class StepPace {
 public:
  // Steps are waited for from `now` on: at the launch, and again when none could arrive before (the agent was
  // away, or the coordinator stood still).
  void WaitFrom(absl::Time now) {
    if (!stalled_) since_ = now;
  }
  // Rank 0's report of a step after `before` (an empty report when it is the attempt's first).
  void Take(const v1::StepReport& before, const v1::StepReport& step, absl::Time now);

  // Once it does, only a step ends that.
  bool Stalled(absl::Time now);
  absl::Time since() const { return since_; }  // Since when steps are waited for.

 private:
  absl::Time since_ = absl::InfiniteFuture();
  absl::Duration step_ = absl::ZeroDuration();  // What one took of late, with what lies between; 0: unknown.
  bool stalled_ = false;
};

}  // namespace fsdpd
