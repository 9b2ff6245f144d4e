// Who stores something does it alone: a change and the events that tell of it are one transaction, and events
// have one order. A turn is waited for without a lock being held while something is stored.
//
// Thread-safe.
#pragma once

#include "base/mutex.h"

namespace fsdpd {

class Turns {
 public:
  // One's turn, for its life.
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
