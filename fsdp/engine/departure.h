// Deadline of a rank that was asked to leave, and the estimate of whether a checkpoint fits before it.
//
// The deadline covers the whole exit. If saving does not fit, the rank leaves immediately; if it overruns, it
// is killed from outside (fsdp/rank/stop_signal.h).
//
// Call order: LeaveWithin any number of times; the earliest deadline wins. Thread-safe.
#pragma once

#include <absl/time/time.h>

#include <cstdint>

#include "base/clock.h"
#include "base/mutex.h"

namespace fsdpd {

class Departure {
 public:
  explicit Departure(Clock* clock = Clock::Real()) : clock_(clock) {}

  void LeaveWithin(absl::Duration time);

  bool requested() const { return remaining() < absl::InfiniteDuration(); }
  // Negative after the deadline; infinite if LeaveWithin was never called.
  absl::Duration remaining() const;

 private:
  Clock* const clock_;
  mutable Mutex mutex_;
  absl::Time end_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();
};

// Inputs of the estimate of how long this rank takes to save and leave.
struct SaveEstimate {
  double last_seconds = 0;  // Duration of the last save, until all ranks had written; 0: none yet.
  int64_t bytes = 0;        // Written by this rank.
  double step_seconds = 0;  // 0: no step was completed.
  int64_t steps = 0;        // Steps until all ranks can save together, including the one in progress.
};

// Errs on the short side: an attempted save that does not finish wastes only the grace period, while one that
// is not attempted loses all work since the last checkpoint.
absl::Duration TimeToSave(const SaveEstimate& estimate);

}  // namespace fsdpd
