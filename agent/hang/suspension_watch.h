// Detector of suspensions of this process: SIGSTOP, CPU throttling, a migrated or suspended machine. During a
// suspension messages of others arrive on time but are read late. So before a loop enforces a deadline, it
// extends the deadline by the time that SuspendedFor returns.
//
// Not thread-safe; one loop owns it.
#pragma once

#include <absl/time/time.h>

#include <algorithm>

namespace fsdpd {

class SuspensionWatch {
 public:
  // `max_iteration`: longest duration of one iteration of the loop under normal conditions.
  explicit SuspensionWatch(absl::Duration max_iteration) : max_iteration_(max_iteration) {}

  // Call once per iteration with Clock::Now(). Returns by how much the last iteration exceeded
  // `max_iteration`; usually zero.
  absl::Duration SuspendedFor(absl::Time now) {
    const absl::Duration took = now - std::min(now, last_iteration_);
    last_iteration_ = now;
    return std::max(took - max_iteration_, absl::ZeroDuration());
  }

 private:
  const absl::Duration max_iteration_;
  absl::Time last_iteration_ = absl::InfiniteFuture();
};

}  // namespace fsdpd
