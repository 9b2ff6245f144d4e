// Time behind an interface, so that leases, ticks and back-off are tested without sleeping. It has two
// readings, and a decision uses the first alone:
//   Now()   only moves forward, however the machine's time is set. Leases, timeouts, back-offs and orders are
//           judged by it. Its zero is arbitrary (the machine's start): compare it with itself, in one
//           process.
//   Wall()  the date that people read. It jumps when somebody, or NTP, sets it.
#pragma once

#include <absl/time/time.h>

#include "base/mutex.h"

namespace fsdpd {

class Clock {
 public:
  virtual ~Clock() = default;
  virtual absl::Time Now() const = 0;
  virtual absl::Time Wall() const = 0;
  // The date of a moment that Now() gave.
  absl::Time WallOf(absl::Time moment) const { return Wall() - (Now() - moment); }

  static Clock* Real();  // Never deleted.
};

// Stands still until it is told. The readings are days apart, so that a mix-up of them shows.
class FakeClock : public Clock {
 public:
  absl::Time Now() const override {
    MutexLock lock(&mutex_);
    return now_;
  }
  absl::Time Wall() const override {
    MutexLock lock(&mutex_);
    return wall_;
  }
  void Advance(absl::Duration by) {
    MutexLock lock(&mutex_);
    now_ += by;
    wall_ += by;
  }
  // Somebody sets the machine's time, forward or back.
  void StepWall(absl::Duration by) {
    MutexLock lock(&mutex_);
    wall_ += by;
  }

 private:
  mutable Mutex mutex_;
  absl::Time now_ ABSL_GUARDED_BY(mutex_) = absl::UnixEpoch() + absl::Hours(1);
  absl::Time wall_ ABSL_GUARDED_BY(mutex_) = absl::FromUnixSeconds(1'000'000);
};

}  // namespace fsdpd
