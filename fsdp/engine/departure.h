// That a rank is told to leave within a time, so that it may save first; and whether saving fits.
//
// The time is the whole of it: who does not fit leaves at once, and who finds out too late is ended from
// outside (fsdp/stop_signal.h).
//
// Call order: LeaveWithin any number of times; the earliest end counts. Thread safety: all methods.
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

  bool told() const { return left() < absl::InfiniteDuration(); }
  // Negative when it is over; infinite while nobody has told it.
  absl::Duration left() const;

 private:
  Clock* const clock_;
  mutable Mutex mutex_;
  absl::Time end_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();
};

// What is known of how long a rank takes to save and leave.
struct SaveEstimate {
  double last_seconds = 0;  // Of the save before, until all ranks had theirs on disk; 0: there was none.
  int64_t bytes = 0;        // That this rank writes.
  double step_seconds = 0;  // 0: no step is done.
  int64_t steps = 0;        // Until one can save that all ranks agree on, with the one that is under way.
};

// Rather too short: a save that does not become ready costs time that was given for it, and one that is not
// tried costs the work since the last.
absl::Duration TimeToSave(const SaveEstimate& estimate);

}  // namespace fsdpd
