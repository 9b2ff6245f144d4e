#include "fsdp/lane/clock_event.h"

#include "base/check.h"

namespace fsdpd {

void ClockEvent::Reach(const absl::Status& status) {
  MutexLock lock(&mutex_);
  FSDPD_CHECK(!reached_);
  reached_ = true;
  status_ = status;
  time_ = std::chrono::steady_clock::now();
  changed_.SignalAll();
}

absl::Status ClockEvent::Await(const Interrupt& /*interrupted*/) {
  MutexLock lock(&mutex_);
  while (!reached_) changed_.Wait(&mutex_);
  return status_;
}

double ClockEvent::SecondsSince(const LaneEvent& earlier) const {
  const auto* other = dynamic_cast<const ClockEvent*>(&earlier);
  FSDPD_CHECK(other != nullptr);  // An event of another device.
  return std::chrono::duration<double>(time() - other->time()).count();
}

std::chrono::steady_clock::time_point ClockEvent::time() const {
  MutexLock lock(&mutex_);
  FSDPD_CHECK(reached_);
  return time_;
}

}  // namespace fsdpd
