#include "base/clock.h"

#include <absl/time/clock.h>

namespace fsdpd {
namespace {

class RealClock : public Clock {
 public:
  absl::Time Now() const override { return absl::Now(); }
};

}  // namespace

Clock* Clock::Real() {
  static auto* clock = new RealClock;
  return clock;
}

}  // namespace fsdpd
