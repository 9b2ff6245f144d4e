// Event of CPU lanes: reached when the lane's thread gets to it, timestamped by the steady clock.
// Thread-safe.
#pragma once

#include <absl/status/status.h>

#include <chrono>

#include "base/mutex.h"
#include "fsdp/lane/lane.h"

namespace fsdpd {

class ClockEvent : public LaneEvent {
 public:
  // Called once, by the lane. `status`: the lane's error so far.
  void Reach(const absl::Status& status);

  using LaneEvent::Await;
  absl::Status Await(const Interrupt& interrupted) override;
  double SecondsSince(const LaneEvent& earlier) const override;

 private:
  std::chrono::steady_clock::time_point time() const;

  mutable Mutex mutex_;
  CondVar changed_;
  bool reached_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  std::chrono::steady_clock::time_point time_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace fsdpd
