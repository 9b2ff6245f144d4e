#include "coordinator/reconcile/event_queue.h"

#include <utility>

namespace fsdpd {

bool EventQueue::Push(Event event) { return Add(std::move(event), /*hurried=*/true); }

bool EventQueue::PushLowPriority(Event event) { return Add(std::move(event), /*hurried=*/false); }

bool EventQueue::Add(Event event, bool hurried) {
  MutexLock lock(&mutex_);
  while (events_.size() >= capacity_ && !closed_) changed_.Wait(&mutex_);
  if (closed_) return false;
  events_.push_back(std::move(event));
  const bool was_hurried = urgent_;
  // Wakes the consumer early at half of the capacity, so that producers rarely block.
  urgent_ |= hurried || events_.size() > capacity_ / 2;
  if (urgent_ && !was_hurried) changed_.SignalAll();
  return true;
}

std::deque<EventQueue::Event> EventQueue::Take(absl::Duration timeout) {
  MutexLock lock(&mutex_);
  if (!urgent_ && !closed_) changed_.WaitFor(&mutex_, absl::ToChronoNanoseconds(timeout));
  std::deque<Event> taken;
  taken.swap(events_);
  // Wakes producers that wait for capacity.
  urgent_ = false;
  changed_.SignalAll();
  return taken;
}

void EventQueue::Close() {
  std::deque<Event> dropped;  // Destroyed after the lock is released: this notifies waiters.
  MutexLock lock(&mutex_);
  closed_ = true;
  dropped.swap(events_);
  changed_.SignalAll();
}

bool EventQueue::closed() const {
  MutexLock lock(&mutex_);
  return closed_;
}

size_t EventQueue::size() const {
  MutexLock lock(&mutex_);
  return events_.size();
}

}  // namespace fsdpd
