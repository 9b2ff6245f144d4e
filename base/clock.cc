#include "base/clock.h"

#include <absl/time/clock.h>

#include <chrono>

namespace fsdpd {
namespace {

class RealClock : public Clock {
 public:
  absl::Time Now() const override {
    const auto since_start = std::chrono::steady_clock::now().time_since_epoch();
    return absl::UnixEpoch() + absl::FromChrono(since_start);
  }
  absl::Time Wall() const override { return absl::Now(); }
};

}  // namespace

Clock* Clock::Real() {
  static auto* clock = new RealClock;
  return clock;
}

}  // namespace fsdpd
