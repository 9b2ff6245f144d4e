// Waiting times between attempts to reach the coordinator: they double from the first to the last, each drawn
// between half and all of it, so that the agents of a cluster do not come back in one instant.
//
// Thread safety: none.
#pragma once

#include <absl/time/time.h>

#include <random>

namespace fsdpd {

class Backoff {
 public:
  Backoff(absl::Duration first, absl::Duration last, uint32_t seed)
      : first_(first), last_(last), random_(seed) {}

  absl::Duration Next();
  void Reset() { current_ = absl::ZeroDuration(); }

 private:
  const absl::Duration first_;
  const absl::Duration last_;
  absl::Duration current_;
  std::mt19937 random_;
};

}  // namespace fsdpd
