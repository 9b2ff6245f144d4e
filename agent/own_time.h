// Tells a loop how long its process stood still: stopped by a signal, throttled, or on a machine that was
// moved. What others owe this process is then late through no fault of theirs, so whoever judges them by a
// deadline first gives them that time.
//
// Thread safety: none; one loop owns it.
#pragma once

#include <absl/time/time.h>

#include <algorithm>

namespace fsdpd {

class OwnTime {
 public:
  // `longest_turn`: what one turn of the loop may take when all is well.
  explicit OwnTime(absl::Duration longest_turn) : longest_turn_(longest_turn) {}

  // Call once a turn, with Clock::Now(). How much longer than a turn may take the last one took; mostly zero.
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
