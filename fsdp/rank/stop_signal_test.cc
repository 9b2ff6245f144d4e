#include "fsdp/rank/stop_signal.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <future>

namespace fsdpd {
namespace {

// Each test runs in a process of its own, which ends with it.
[[noreturn]] void Hang() {
  for (;;) pause();
}

TEST(StopSignal, HangingAbortDoesNotPreventExit) {
  const auto leave = [] {
    StopSignal stop;
    stop.SetAbort(Hang);
    stop.Request(kPeerFailedExitCode, "test");
    Hang();
  };
  EXPECT_EXIT(leave(), testing::ExitedWithCode(kPeerFailedExitCode), "aborted a blocked collective");
}

TEST(StopSignal, SigtermEndsBlockedRank) {
  const auto leave = [] {
    BlockStopSignal();
    StopSignal stop;
    kill(getpid(), SIGTERM);
    Hang();
  };
  EXPECT_EXIT(leave(), testing::ExitedWithCode(kStoppedExitCode), "reason=SIGTERM");
}

TEST(StopSignal, RankUnblockedByAbortExitsNormally) {
  const auto leave = [] {
    StopSignal stop;
    std::promise<void> woken;
    stop.SetAbort([&woken] { woken.set_value(); });
    stop.Request(kPeerFailedExitCode, "the first reason counts");
    stop.Request(kStoppedExitCode, "a later one");
    woken.get_future().wait();
    stop.SetAbort(nullptr);
    _exit(stop.requested() && stop.exit_code() == kPeerFailedExitCode ? 0 : 1);
  };
  // On a very busy machine, its half second may pass first, and it is ended for the same reason.
  const auto left = [](int status) {
    return testing::ExitedWithCode(0)(status) || testing::ExitedWithCode(kPeerFailedExitCode)(status);
  };
  EXPECT_EXIT(leave(), left, "the first reason counts");
}

}  // namespace
}  // namespace fsdpd
