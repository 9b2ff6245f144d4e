// What the coordinator has to say to one agent's stream: a bounded queue between those who push (reconciler,
// rendezvous, log relay) and the stream's one writer.
//
// A stream that does not keep up is closed rather than waited for: the agent reconnects and says what it
// hosts, which loses nothing, while a blocked reconciler would stop every job.
//
// Thread-safe. Ownership: shared by the stream's handler and the registry; `on_close` (it ends the stream) is
// called at most once and never after Release().
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
  // Blocks for the next message; false once closed.
  bool Pop(v1::CoordinatorMessage* message);
  // Likewise, and false when there is none now.
  bool TryPop(v1::CoordinatorMessage* message);
  void Close();
  // The stream's handler is about to return: what `on_close` refers to goes away.
  void Release();

 private:
  void CloseLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const int64_t epoch_;
  Mutex mutex_;
  CondVar changed_;
  std::deque<v1::CoordinatorMessage> messages_ ABSL_GUARDED_BY(mutex_);
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  std::function<void()> on_close_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace fsdpd
