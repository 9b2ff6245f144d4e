// Ctrl-C as an object: what waits or reads a stream registers how it is to be ended, and tests interrupt it
// without a signal. Fired once, it stays fired.
//
// Thread-safe. Actions run on the thread that fires; they must not block.
#pragma once

#include <chrono>
#include <functional>

#include "base/mutex.h"

namespace fsdpd {

class Interrupt {
 public:
  void Fire();
  bool fired() const;

  // Sleeps, at most until fired. True when fired.
  bool WaitFor(std::chrono::nanoseconds time);

  // While it lives, Fire() runs `action`; at once when fired already. One at a time per Interrupt.
  class Scope {
   public:
    Scope(Interrupt* interrupt, std::function<void()> action);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Interrupt* const interrupt_;
  };

 private:
  mutable Mutex mutex_;
  CondVar changed_;
  bool fired_ ABSL_GUARDED_BY(mutex_) = false;
  std::function<void()> action_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace fsdpd
