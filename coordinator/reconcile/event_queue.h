// Queue of the reconciler: RPC handlers and agent streams push closures, which run on the reconciler's thread
// in order. It is the only entry to the reconciler's state, which therefore needs no lock.
//
// Bounded: Push blocks while the queue is full. This slows agent streams and client calls, but nothing that
// the consuming thread itself depends on. Thread-safe for any number of producers and one consumer.
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

  // Returns false and drops the event if the queue is closed.
  bool Push(Event event);
  // As Push, but does not wake Take(): for frequent events that lose nothing if they are taken together with
  // the next event or at the timeout.
  bool PushLowPriority(Event event);
  // Runs `decide` on the consuming thread and blocks until it passes a result to `answer`. Returns `closed`
  // if the queue was closed first. `take`: called before the wait if the caller is the consuming thread.
  template <typename T>
  T Call(std::function<void(const std::function<void(T)>& answer)> decide, T closed,
         const Event& take = nullptr) {
    auto promise = std::make_shared<std::promise<T>>();
    std::future<T> decided = promise->get_future();
    const bool pushed = Push([decide = std::move(decide), promise] {
      decide([&promise](T answer) { promise->set_value(std::move(answer)); });
    });
    if (!pushed) return closed;
    if (take) take();
    promise.reset();  // If the queue drops the event, get() throws instead of blocking.
    try {
      return decided.get();
    } catch (const std::future_error&) {
      return closed;
    }
  }
  // All pending events, after waiting at most `timeout` for one that wakes the consumer.
  std::deque<Event> Take(absl::Duration timeout);
  void Close();  // Drops pending events.
  bool closed() const;
  size_t size() const;

 private:
  bool Add(Event event, bool hurried);

  const size_t capacity_;
  mutable Mutex mutex_;
  CondVar changed_;
  std::deque<Event> events_ ABSL_GUARDED_BY(mutex_);
  bool urgent_ ABSL_GUARDED_BY(mutex_) = false;  // An event of Push() is pending, or the queue is half full.
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace fsdpd
