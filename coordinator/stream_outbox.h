// What the coordinator has to say to one agent's stream: a bounded queue between those who push (reconciler,
// rendezvous, log relay) and the stream's one writer, which has no thread: it writes while there is
// something, and is woken when there is something again.
//
// A stream that does not keep up is closed rather than waited for: the agent reconnects and says what it
// hosts, which loses nothing, while a blocked reconciler would stop every job.
//
// Thread-safe. Ownership: shared by the stream and the registry. `on_close` (it ends the stream) is called at
// most once, and like the writer's `wake` without a lock held and by whichever thread comes across: both may
// still be inside when Release() returns, and are not called anew after it.
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
  StreamOutbox(int64_t epoch, std::function<void()> on_close)
      : epoch_(epoch), on_close_(std::move(on_close)) {}

  int64_t epoch() const { return epoch_; }

  // Stamps the epoch. False when closed, or when full, which closes it.
  bool Push(v1::CoordinatorMessage message);
  // The writer's: the next message; false when there is none now, or closed.
  bool TryPop(v1::CoordinatorMessage* message);
  // `wake`: called by the first Push() after a TryPop() that gave nothing, once. Until there was one, the
  // writer is to call that by itself.
  void SetWriter(std::function<void()> wake);
  void Close();
  // The stream is about to end: what `on_close` and `wake` refer to goes away.
  void Release();

 private:
  const int64_t epoch_;
  Mutex mutex_;
  std::deque<v1::CoordinatorMessage> messages_ ABSL_GUARDED_BY(mutex_);
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  bool writer_waits_ ABSL_GUARDED_BY(mutex_) = false;
  std::function<void()> on_close_ ABSL_GUARDED_BY(mutex_);
  std::function<void()> wake_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace fsdpd
