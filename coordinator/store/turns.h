// Serialization of a store's writers: a change and its events are one transaction, and events have one order.
// Waiters block on a condition variable, and no lock is held during I/O.
//
// Thread-safe.
#pragma once

#include "base/mutex.h"

namespace fsdpd {

class Turns {
 public:
  // Holds the turn for its lifetime.
  class Turn {
   public:
    explicit Turn(Turns* turns) : turns_(turns) {
      MutexLock lock(&turns_->mutex_);
      while (turns_->taken_) turns_->over_.Wait(&turns_->mutex_);
      turns_->taken_ = true;
    }
    ~Turn() {
      {
        MutexLock lock(&turns_->mutex_);
        turns_->taken_ = false;
      }
      turns_->over_.Signal();
    }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

   private:
    Turns* const turns_;
  };

 private:
  Mutex mutex_;
  CondVar over_;
  bool taken_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace fsdpd
