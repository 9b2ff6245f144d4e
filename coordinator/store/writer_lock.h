// Serialization of a store's writers: a change and its events are one transaction, and events have one order.
// Waiters block on a condition variable, and no lock is held during I/O.
//
// Thread-safe.
#pragma once

#include "base/mutex.h"

namespace fsdpd {

class WriterLock {
 public:
  // Holds the turn for its lifetime.
  class Hold {
   public:
    explicit Hold(WriterLock* writer_lock) : writer_lock_(writer_lock) {
      MutexLock lock(&writer_lock_->mutex_);
      while (writer_lock_->taken_) writer_lock_->over_.Wait(&writer_lock_->mutex_);
      writer_lock_->taken_ = true;
    }
    ~Hold() {
      {
        MutexLock lock(&writer_lock_->mutex_);
        writer_lock_->taken_ = false;
      }
      writer_lock_->over_.Signal();
    }
    Hold(const Hold&) = delete;
    Hold& operator=(const Hold&) = delete;

   private:
    WriterLock* const writer_lock_;
  };

 private:
  Mutex mutex_;
  CondVar over_;
  bool taken_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace fsdpd
