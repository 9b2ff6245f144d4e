// SIGTERM of a rank: a flag that the trainer polls between instructions, and a way out for a rank that cannot
// get there because it waits in a collective whose peers are gone.
//
//   at once      requested() turns true
//   after 2 s    `abort`, which wakes the lanes from their collectives
//   after 5 s    the process exits with 143, whatever it is doing
//
// Call order: BlockStopSignal first thing in main, before any thread starts (threads inherit the mask); then
// one StopSignal for the life of the process.
#pragma once

#include <atomic>
#include <functional>

#include "base/mutex.h"

namespace fsdpd {

constexpr int kStoppedExitCode = 143;  // 128 + SIGTERM, as shells and container runtimes know it.

void BlockStopSignal();

class StopSignal {
 public:
  StopSignal();  // Starts the thread that waits for the signal. Never destroyed.

  const std::atomic<bool>& requested() const { return requested_; }

  // `abort` must be callable from any thread until it is replaced or cleared with nullptr.
  void SetAbort(std::function<void()> abort);

 private:
  void Wait();

  std::atomic<bool> requested_{false};
  Mutex mutex_;
  std::function<void()> abort_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace fsdpd
