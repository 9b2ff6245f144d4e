#include "fsdp/rank/stop_signal.h"

#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "base/log.h"

namespace fsdpd {
namespace {

// Together the half second in which a healthy rank finishes its current instruction. A longer wait is a wait
// for a peer; ending it loses nothing, since an incomplete step is of no use.
constexpr auto kUntilAbort = std::chrono::milliseconds(250);
constexpr auto kUntilExit = std::chrono::milliseconds(250);  // After the abort.

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
  std::thread([this] {
    const sigset_t set = StopSet();
    int signal = 0;
    while (sigwait(&set, &signal) != 0) {
    }
    Request(kStoppedExitCode, "SIGTERM");
  }).detach();
}

void StopSignal::Request(int exit_code, const std::string& why) {
  int none = 0;
  if (!exit_code_.compare_exchange_strong(none, exit_code)) return;
  requested_ = true;
  std::thread([this, exit_code] {
    std::this_thread::sleep_for(kUntilAbort);
    std::thread([this] { Abort(); }).detach();
    std::this_thread::sleep_for(kUntilExit);
    _exit(exit_code);
  }).detach();
  LogInfo("stopping at the next instruction, or exiting in 500 ms reason=%s", why);
}

void StopSignal::SetAbort(std::function<void()> abort) {
  MutexLock lock(&mutex_);
  abort_ = std::move(abort);
}

void StopSignal::Abort() {
  // Held across the call, so that `abort` cannot be replaced while it runs.
  MutexLock lock(&mutex_);
  if (!abort_) return;
  LogWarning("aborted a blocked collective");
  abort_();
}

}  // namespace fsdpd
