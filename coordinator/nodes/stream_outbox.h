// Bounded queue of messages from the coordinator to one agent's stream, which has one writer. The writer has
// no thread: it writes while there are messages, and is woken by the next one.
//
// A stream that does not keep up is closed, because a blocked reconciler would stop every job. Nothing is
// lost: the agent reconnects and reports what it hosts.
//
// Thread-safe. Ownership: shared by the stream and the registry. `on_close` (ends the stream) is called at
// most once. It and the writer's `wake` are called without a lock held, by any thread. Both may still be
// running when Release() returns, and are not called again after it.
#pragma once

#include <deque>
#include <functional>

#include "base/mutex.h"
#include "proto/fsdpd/v1/agent.pb.h"

namespace fsdpd {

// Rendezvous answers dominate: every rank of a node asks for every peer's address.
constexpr size_t kMaxOutboxMessages = 1 << 17;

class StreamOutbox {
 public:
  StreamOutbox(int64_t stream_generation, std::function<void()> on_close)
      : stream_generation_(stream_generation), on_close_(std::move(on_close)) {}

  int64_t stream_generation() const { return stream_generation_; }

  // Sets the message's generation. Returns false if closed, or if full, which closes the queue.
  bool Push(v1::CoordinatorMessage message);
  // For the writer: takes the next message; false if absent or the queue is closed.
  bool TryPop(v1::CoordinatorMessage* message);
  // `wake` is called once by the first Push() after a TryPop() that returned false. Before the first such
  // TryPop(), the writer must call TryPop() itself.
  void SetWriter(std::function<void()> wake);
  void Close();
  // The stream is about to end and the targets of `on_close` and `wake` with it.
  void Release();

 private:
  const int64_t stream_generation_;
  Mutex mutex_;
  std::deque<v1::CoordinatorMessage> messages_ ABSL_GUARDED_BY(mutex_);
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  bool writer_waits_ ABSL_GUARDED_BY(mutex_) = false;
  std::function<void()> on_close_ ABSL_GUARDED_BY(mutex_);
  std::function<void()> wake_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace fsdpd
