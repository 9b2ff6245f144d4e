// Interrupt: Ctrl-C as an object. Code that waits or reads a stream registers an action that ends it, and
// tests fire the interrupt without a signal. Once fired, it stays fired.
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

  // Sleeps for `time` or until fired. Returns whether it is fired.
  bool WaitFor(std::chrono::nanoseconds time);

  // Runs `action` on Fire() during the lifetime of the scope, or immediately if the interrupt has fired. An
  // Interrupt has at most one Scope at a time.
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
