// A Clock that only moves forward, for grace periods and back-off: a step of the wall clock must neither kill
// a rank early nor keep a stubborn one alive. Its zero is arbitrary; compare its times with each other only.
#pragma once

#include <absl/time/time.h>

#include <chrono>

#include "base/clock.h"

namespace fsdpd {

class SteadyClock : public Clock {
 public:
  absl::Time Now() const override {
    const auto since_boot = std::chrono::steady_clock::now().time_since_epoch();
    return absl::UnixEpoch() + absl::FromChrono(since_boot);
  }
};

}  // namespace fsdpd
