#include "coordinator/stream_outbox.h"

namespace fsdpd {

bool StreamOutbox::Push(v1::CoordinatorMessage message) {
  message.set_epoch(epoch_);
  MutexLock lock(&mutex_);
  if (closed_) return false;
  if (messages_.size() >= kMaxOutboxMessages) {
    CloseLocked();
    return false;
  }
  messages_.push_back(std::move(message));
  changed_.Signal();
  return true;
}

bool StreamOutbox::Pop(v1::CoordinatorMessage* message) {
  MutexLock lock(&mutex_);
  while (messages_.empty() && !closed_) changed_.Wait(&mutex_);
  if (closed_) return false;
  *message = std::move(messages_.front());
  messages_.pop_front();
  return true;
}

bool StreamOutbox::TryPop(v1::CoordinatorMessage* message) {
  MutexLock lock(&mutex_);
  if (closed_ || messages_.empty()) return false;
  *message = std::move(messages_.front());
  messages_.pop_front();
  return true;
}

void StreamOutbox::Close() {
  MutexLock lock(&mutex_);
  CloseLocked();
}

void StreamOutbox::CloseLocked() {
  if (closed_) return;
  closed_ = true;
  // Under the lock, so that Release() cannot return while the callback runs. It only marks a call as
  // cancelled.
  if (on_close_) on_close_();
  changed_.SignalAll();
}

void StreamOutbox::Release() {
  MutexLock lock(&mutex_);
  on_close_ = nullptr;
  closed_ = true;
  changed_.SignalAll();
}

}  // namespace fsdpd
