#include "coordinator/event_queue.h"

namespace fsdpd {

bool EventQueue::Push(Event event) {
  MutexLock lock(&mutex_);
  while (events_.size() >= capacity_ && !closed_) changed_.Wait(&mutex_);
  if (closed_) return false;
  events_.push_back(std::move(event));
  changed_.SignalAll();
  return true;
}

std::deque<EventQueue::Event> EventQueue::Take(absl::Duration timeout) {
  MutexLock lock(&mutex_);
  if (events_.empty() && !closed_) changed_.WaitFor(&mutex_, absl::ToChronoNanoseconds(timeout));
  std::deque<Event> taken;
  taken.swap(events_);
  changed_.SignalAll();
  return taken;
}

void EventQueue::Close() {
  MutexLock lock(&mutex_);
  closed_ = true;
  changed_.SignalAll();
}

bool EventQueue::closed() const {
  MutexLock lock(&mutex_);
  return closed_;
}

}  // namespace fsdpd
