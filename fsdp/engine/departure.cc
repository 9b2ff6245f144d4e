#include "fsdp/engine/departure.h"

#include <algorithm>

namespace fsdpd {
namespace {

// Rate of one rank on a fast disk.
constexpr double kBytesPerSecond = 1e9;

}  // namespace

void Departure::LeaveWithin(absl::Duration time) {
  MutexLock lock(&mutex_);
  end_ = std::min(end_, clock_->Now() + time);
}

absl::Duration Departure::remaining() const {
  MutexLock lock(&mutex_);
  return end_ - clock_->Now();
}

absl::Duration TimeToSave(const SaveEstimate& estimate) {
  const double seconds = estimate.last_seconds > 0 ? estimate.last_seconds
                                                   : static_cast<double>(estimate.bytes) / kBytesPerSecond;
  return absl::Seconds(seconds + static_cast<double>(estimate.steps) * estimate.step_seconds);
}

}  // namespace fsdpd
