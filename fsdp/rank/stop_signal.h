// Termination of a rank, including when it is blocked in a collective whose peers are gone or hang.
//
//   immediately    requested() becomes true: the trainer leaves at its next instruction
//   after 250 ms   calls `abort`, which unblocks the lanes from their collectives
//   after 500 ms   the process exits with exit_code(), whatever it is doing, without any cleanup
//
// No stage waits for the previous one: on a GPU an abort may hang like the collective does, and so may
// releasing memory that the device still uses.
//
// Call order: BlockStopSignal at the start of main, before any thread is started (threads inherit the mask);
// then create one StopSignal for the life of the process, which is never destroyed. Thread-safe.
#pragma once

#include <atomic>
#include <functional>
#include <string>

#include "base/mutex.h"
#include "base/rank/exit_code.h"

namespace fsdpd {

void BlockStopSignal();

class StopSignal {
 public:
  StopSignal();  // Starts the thread that waits for SIGTERM, which requests the end with kStoppedExitCode.

  // Starts termination and logs `why`. Only the first request counts.
  void Request(int exit_code, const std::string& why);

  const std::atomic<bool>& requested() const { return requested_; }
  // Exit code of the request; 0 if absent.
  int exit_code() const { return exit_code_; }

  // `abort` must be callable from any thread until it is replaced or cleared with nullptr.
  void SetAbort(std::function<void()> abort);

 private:
  void Abort();

  std::atomic<int> exit_code_{0};
  std::atomic<bool> requested_{false};
  Mutex mutex_;
  std::function<void()> abort_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace fsdpd
