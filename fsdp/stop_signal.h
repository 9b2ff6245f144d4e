// How a rank is told to leave, and its way out when it cannot get there because it waits in a collective
// whose peers are gone or hang.
//
//   at once        requested() turns true: the trainer leaves at its next instruction
//   after 250 ms   `abort`, which wakes the lanes from their collectives
//   after 500 ms   the process exits with exit_code(), whatever it is doing, and tears nothing down
//
// No rung waits for the one before: on a GPU an abort may hang as the collective does, and so may the release
// of what the device still uses.
//
// Call order: BlockStopSignal first thing in main, before any thread starts (threads inherit the mask); then
// one StopSignal for the life of the process, which is never destroyed. Thread safety: all methods.
#pragma once

#include <atomic>
#include <functional>
#include <string>

#include "base/exit_code.h"
#include "base/mutex.h"

namespace fsdpd {

void BlockStopSignal();

class StopSignal {
 public:
  StopSignal();  // Starts the thread that waits for SIGTERM, which requests the end with kStoppedExitCode.

  // Begins the end; `why` is logged. The first request counts, later ones change nothing.
  void Request(int exit_code, const std::string& why);

  const std::atomic<bool>& requested() const { return requested_; }
  // Of the request; 0 as long as there is none.
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
