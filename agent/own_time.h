// Detector of suspensions of this process: SIGSTOP, CPU throttling, a migrated or suspended machine. During a
// suspension messages of others arrive on time but are read late. So before a loop enforces a deadline, it
// extends the deadline by the time that StoodStill returns.
//
// Thread safety: none; one loop owns it.
#pragma once

#include <absl/time/time.h>

#include <algorithm>

namespace fsdpd {

class OwnTime {
 public:
  // `longest_turn`: longest duration of one iteration of the loop under normal conditions.
  explicit OwnTime(absl::Duration longest_turn) : longest_turn_(longest_turn) {}

  // Call once per iteration with Clock::Now(). Returns by how much the last iteration exceeded
  // `longest_turn`; usually zero.
  absl::Duration StoodStill(absl::Time now) {
    const absl::Duration took = now - std::min(now, last_turn_);
    last_turn_ = now;
    return std::max(took - longest_turn_, absl::ZeroDuration());
  }

 private:
  const absl::Duration longest_turn_;
  absl::Time last_turn_ = absl::InfiniteFuture();
};

}  // namespace fsdpd
