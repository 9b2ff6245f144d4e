// What RPC handlers and agents' streams hand to the reconciler: closures that run on its thread, in order. It
// is the only door to the reconciler's state, which therefore needs no lock.
//
// Bounded: a full queue makes the pusher wait, which slows one agent's stream and nothing else.
// Thread-safe; one thread takes.
#pragma once

#include <absl/time/time.h>

#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <utility>

#include "base/mutex.h"

namespace fsdpd {

class EventQueue {
 public:
  using Event = std::function<void()>;

  explicit EventQueue(size_t capacity) : capacity_(capacity) {}

  // False, and the event is dropped, once closed.
  bool Push(Event event);
  // Has `decide` run on the taking thread, and waits for what it gives to `answer`; `closed` where the queue
  // was closed before. `take`: called in between where this is that thread.
  template <typename T>
  T Ask(std::function<void(const std::function<void(T)>& answer)> decide, T closed,
        const Event& take = nullptr) {
    auto promise = std::make_shared<std::promise<T>>();
    std::future<T> decided = promise->get_future();
    const bool pushed = Push([decide = std::move(decide), promise] {
      decide([&promise](T answer) { promise->set_value(std::move(answer)); });
    });
    if (!pushed) return closed;
    if (take) take();
    promise.reset();  // An event that is dropped with the queue breaks it instead of leaving us waiting.
    try {
      return decided.get();
    } catch (const std::future_error&) {
      return closed;
    }
  }
  // All events there are, after waiting at most `timeout` for the first.
  std::deque<Event> Take(absl::Duration timeout);
  void Close();
  bool closed() const;

 private:
  const size_t capacity_;
  mutable Mutex mutex_;
  CondVar changed_;
  std::deque<Event> events_ ABSL_GUARDED_BY(mutex_);
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace fsdpd
