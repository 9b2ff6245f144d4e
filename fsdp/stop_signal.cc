#include "fsdp/stop_signal.h"

#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "base/log.h"

namespace fsdpd {
namespace {

constexpr auto kUntilAbort = std::chrono::seconds(2);
constexpr auto kUntilExit = std::chrono::seconds(3);  // After the abort.

sigset_t StopSet() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  return set;
}

}  // namespace

void BlockStopSignal() {
  const sigset_t set = StopSet();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

StopSignal::StopSignal() {
  std::thread([this] { Wait(); }).detach();
}

void StopSignal::SetAbort(std::function<void()> abort) {
  MutexLock lock(&mutex_);
  abort_ = std::move(abort);
}

void StopSignal::Wait() {
  const sigset_t set = StopSet();
  int signal = 0;
  while (sigwait(&set, &signal) != 0) {
  }
  requested_ = true;
  LogInfo("SIGTERM: stopping at the next instruction");
  std::this_thread::sleep_for(kUntilAbort);
  {
    // Held across the call, so that what `abort` acts on cannot go away meanwhile.
    MutexLock lock(&mutex_);
    if (abort_) {
      LogWarning("still running 2 s after SIGTERM: leaving the collectives");
      abort_();
    }
  }
  std::this_thread::sleep_for(kUntilExit);
  LogError("still running 5 s after SIGTERM: exiting at once");
  _exit(kStoppedExitCode);
}

}  // namespace fsdpd
