// Time source, so that leases, ticks and backoff are tested without sleeping. It has two clocks, and
// decisions use only the first:
//   Now()   monotonic, for leases, timeouts, backoff and order of events. Its epoch is arbitrary (the boot
//           time): compare values of one process only.
//   Wall()  the date for users. It jumps when the system time is set, by a user or NTP.
#pragma once

#include <absl/time/time.h>

#include "base/mutex.h"

namespace fsdpd {

class Clock {
 public:
  virtual ~Clock() = default;
  virtual absl::Time Now() const = 0;
  virtual absl::Time Wall() const = 0;
  // The date of a value of Now().
  absl::Time WallOf(absl::Time moment) const { return Wall() - (Now() - moment); }

  static Clock* Real();  // Never deleted.
};

// Advances only when the test does so. The two clocks are days apart, so that mixing them up is noticed.
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
  // Simulates a change of the system time, forward or back.
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
