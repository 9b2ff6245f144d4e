#include "client/text/interrupt.h"

#include <utility>

namespace fsdpd {

void Interrupt::Fire() {
  std::function<void()> action;
  {
    MutexLock lock(&mutex_);
    if (fired_) return;
    fired_ = true;
    action = action_;
    changed_.SignalAll();
  }
  if (action) action();
}

bool Interrupt::fired() const {
  MutexLock lock(&mutex_);
  return fired_;
}

bool Interrupt::WaitFor(std::chrono::nanoseconds time) {
  const auto end = std::chrono::steady_clock::now() + time;
  MutexLock lock(&mutex_);
  while (!fired_) {
    const auto left = end - std::chrono::steady_clock::now();
    if (left <= std::chrono::nanoseconds::zero()) return false;
    changed_.WaitFor(&mutex_, left);
  }
  return true;
}

Interrupt::Scope::Scope(Interrupt* interrupt, std::function<void()> action) : interrupt_(interrupt) {
  bool already = false;
  {
    MutexLock lock(&interrupt_->mutex_);
    already = interrupt_->fired_;
    interrupt_->action_ = action;
  }
  if (already) action();
}

Interrupt::Scope::~Scope() {
  MutexLock lock(&interrupt_->mutex_);
  interrupt_->action_ = nullptr;
}

}  // namespace fsdpd
