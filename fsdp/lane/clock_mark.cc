#include "fsdp/lane/clock_mark.h"

#include "base/check.h"

namespace fsdpd {

void ClockMark::Reach(const absl::Status& status) {
  MutexLock lock(&mutex_);
  FSDPD_CHECK(!reached_);
  reached_ = true;
  status_ = status;
  time_ = std::chrono::steady_clock::now();
  changed_.SignalAll();
}

absl::Status ClockMark::Await(const Interrupt& /*interrupted*/) {
  MutexLock lock(&mutex_);
  while (!reached_) changed_.Wait(&mutex_);
  return status_;
}

double ClockMark::SecondsSince(const Mark& earlier) const {
  const auto* other = dynamic_cast<const ClockMark*>(&earlier);
  FSDPD_CHECK(other != nullptr);  // A mark of another device.
  return std::chrono::duration<double>(time() - other->time()).count();
}

std::chrono::steady_clock::time_point ClockMark::time() const {
  MutexLock lock(&mutex_);
  FSDPD_CHECK(reached_);
  return time_;
}

}  // namespace fsdpd
