// Jittered exponential backoff between attempts to reach the coordinator. The wait doubles from `first` up to
// `last`; each is drawn uniformly from [0.5, 1] of it, so that the agents of a cluster do not reconnect
// simultaneously.
//
// Not thread-safe.
#pragma once

#include <absl/time/time.h>

#include <algorithm>
#include <random>

namespace fsdpd {

class Backoff {
 public:
  Backoff(absl::Duration first, absl::Duration last, uint32_t seed)
      : first_(first), last_(last), random_(seed) {}

  absl::Duration Next() {
    current_ = current_ == absl::ZeroDuration() ? first_ : std::min(2 * current_, last_);
    return current_ * std::uniform_real_distribution<double>(0.5, 1.0)(random_);
  }
  void Reset() { current_ = absl::ZeroDuration(); }

 private:
  const absl::Duration first_;
  const absl::Duration last_;
  absl::Duration current_;
  std::mt19937 random_;
};

}  // namespace fsdpd
