#include "coordinator/nodes/stream_outbox.h"

#include <utility>

namespace fsdpd {

bool StreamOutbox::Push(v1::CoordinatorMessage message) {
  message.set_stream_generation(stream_generation_);
  std::function<void()> wake;
  bool full = false;
  {
    MutexLock lock(&mutex_);
    if (closed_) return false;
    full = messages_.size() >= kMaxOutboxMessages;
    if (!full) {
      messages_.push_back(std::move(message));
      if (std::exchange(writer_waits_, false)) wake = wake_;
    }
  }
  if (full) Close();
  if (wake) wake();
  return !full;
}

bool StreamOutbox::TryPop(v1::CoordinatorMessage* message) {
  MutexLock lock(&mutex_);
  writer_waits_ = messages_.empty();
  if (closed_ || messages_.empty()) return false;
  *message = std::move(messages_.front());
  messages_.pop_front();
  return true;
}

void StreamOutbox::SetWriter(std::function<void()> wake) {
  MutexLock lock(&mutex_);
  if (!closed_) wake_ = std::move(wake);
}

void StreamOutbox::Close() {
  std::function<void()> on_close;
  {
    MutexLock lock(&mutex_);
    closed_ = true;
    on_close = std::exchange(on_close_, nullptr);
  }
  if (on_close) on_close();
}

void StreamOutbox::Release() {
  MutexLock lock(&mutex_);
  on_close_ = nullptr;
  wake_ = nullptr;
  closed_ = true;
}

}  // namespace fsdpd
