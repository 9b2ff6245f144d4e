// What RPC handlers and agents' streams hand to the reconciler: closures that run on its thread, in order. It
// is the only door to the reconciler's state, which therefore needs no lock.
//
// Bounded: a full queue makes the pusher wait, which slows agents' streams and clients' calls, and nothing of
// what the taking thread needs to go on.
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
  // Likewise, but Take() goes on waiting: for what comes by the thousand and loses nothing when it is taken
  // with what comes next, or when the time is over.
  bool PushUnhurried(Event event);
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
  // All events there are, after waiting at most `timeout` for one that is in a hurry.
  std::deque<Event> Take(absl::Duration timeout);
  void Close();  // Drops those that nobody has taken.
  bool closed() const;
  size_t size() const;

 private:
  bool Add(Event event, bool hurried);

  const size_t capacity_;
  mutable Mutex mutex_;
  CondVar changed_;
  std::deque<Event> events_ ABSL_GUARDED_BY(mutex_);
  bool hurried_ ABSL_GUARDED_BY(mutex_) = false;  // One of them is, or there are many.
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace fsdpd
