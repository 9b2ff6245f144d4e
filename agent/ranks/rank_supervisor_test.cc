// Tests of times that a fake clock controls, the facts of an exit, and errors within the agent. Ranks are
// real processes.
#include "agent/ranks/rank_supervisor.h"

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <new>
#include <stdexcept>
#include <thread>

#include "agent/testing/supervisor_case.h"
#include "base/rank/exit_code.h"

namespace fsdpd {
namespace {

class RankSupervisorTest : public SupervisorCase {};

TEST_F(RankSupervisorTest, KillsARankThatIgnoresSigtermAfterTheGracePeriod) {
  Start();
  supervisor_->Launch(Launch("stubborn", 1, {0}));
  events_.Await("ready 0");
  supervisor_->Stop(Stop(1, 60000));
  supervisor_->HostedAttempts();  // Returns after the stop was handled.
  Pass(absl::Seconds(59));
  EXPECT_FALSE(events_.Has("exit 0"));
  Pass(absl::Seconds(2));
  const v1::RankExit exit = events_.AwaitExit(0);
  EXPECT_EQ(exit.signal(), SIGKILL);
  EXPECT_TRUE(exit.cancelled());
  events_.Await("stopped");
}

TEST_F(RankSupervisorTest, HadListsEndedAttempts) {
  Start();
  EXPECT_TRUE(supervisor_->PastAttempts().empty());
  supervisor_->Launch(Launch("stubborn", 1, {0}));
  const AttemptId first = supervisor_->PastAttempts().at(0);
  EXPECT_EQ(first.attempt, 1);
  events_.Await("ready 0");
  supervisor_->Stop(Stop(1, 1));
  supervisor_->HostedAttempts();  // Returns after the stop was handled.
  Pass(absl::Seconds(1));
  events_.Await("stopped");
  EXPECT_TRUE(supervisor_->HostedAttempts().empty());
  EXPECT_EQ(supervisor_->PastAttempts(), std::vector<AttemptId>{first});
}

// The test sets the GPU memory; readings are visible once they are recent enough.
TEST_F(RankSupervisorTest, AttemptIsGoneWhenGpuMemoryIsFree) {
  std::atomic<int64_t> used{1 << 20};
  options_.device = v1::DEVICE_CUDA;
  options_.used_bytes = [&used](int, absl::Time) { return std::optional<int64_t>(used); };
  Start();
  supervisor_->Launch(Launch("stubborn", 1, {0, 2}));
  events_.Await("ready 0");
  events_.Await("ready 1");
  used = int64_t{8} << 30;
  supervisor_->Stop(Stop(1, 1));
  supervisor_->HostedAttempts();  // Returns after the stop was handled.
  Pass(absl::Seconds(1));
  events_.AwaitExit(0);
  events_.AwaitExit(1);
  for (int turn = 0; turn < 3; ++turn) supervisor_->HostedAttempts();
  EXPECT_FALSE(events_.Has("stopped")) << "their memory is held";
  supervisor_->Launch(Launch("stubborn", 2, {2}));
  while (events_.Count("exit 0") < 2) supervisor_->HostedAttempts();
  EXPECT_EQ(events_.AwaitExit(0).error(), "launch rejected: device 2 is not free");
  used = 1 << 20;
  events_.Await("freed 2");
  events_.Await("stopped");
  supervisor_->Launch(Launch("stubborn", 3, {2}));
  events_.Await("launched 0 device 2");
}

TEST_F(RankSupervisorTest, ReportsHeldGpuMemoryAfterTheTimeout) {
  std::atomic<int64_t> used{0};
  options_.used_bytes = [&used](int, absl::Time) { return std::optional<int64_t>(used); };
  Start();
  supervisor_->Launch(Launch("stubborn", 1, {1}));
  events_.Await("ready 0");
  used = int64_t{2} << 30;
  supervisor_->Stop(Stop(1, 1));
  supervisor_->HostedAttempts();  // Returns after the stop was handled.
  Pass(absl::Seconds(1));
  events_.AwaitExit(0);
  Pass(FreedMemory::kLongest + absl::Seconds(1));
  events_.Await("held 1 2147483648");
  events_.Await("stopped");
}

TEST_F(RankSupervisorTest, SuspensionOfTheAgentExtendsTheGracePeriod) {
  Start();
  supervisor_->Launch(Launch("stubborn", 1, {0}));
  events_.Await("ready 0");
  supervisor_->Stop(Stop(1, 60000));
  supervisor_->HostedAttempts();
  clock_.Advance(absl::Hours(1));  // Within one iteration of the loop.
  for (int turn = 0; turn < 3; ++turn) supervisor_->HostedAttempts();
  EXPECT_FALSE(events_.Has("exit 0"));
  Pass(absl::Seconds(61));
  EXPECT_EQ(events_.AwaitExit(0).signal(), SIGKILL);
}

TEST_F(RankSupervisorTest, WallClockChangesDoNotAffectDeadlines) {
  Start();
  supervisor_->Launch(Launch("stubborn", 1, {0}));
  events_.Await("ready 0");
  supervisor_->Stop(Stop(1, 60000));
  supervisor_->HostedAttempts();
  clock_.StepWall(absl::Hours(1));
  for (int turn = 0; turn < 3; ++turn) supervisor_->HostedAttempts();
  EXPECT_FALSE(events_.Has("exit 0"));
}

TEST_F(RankSupervisorTest, FirstFailureIsTheCauseAndPeersAreNotified) {
  Start();
  supervisor_->Launch(Launch("peer-dies", 1, {0, 1, 2}));
  const v1::RankExit first = events_.AwaitExit(0);
  EXPECT_FALSE(first.peer_failed());
  for (const int rank : {1, 2}) {
    const v1::RankExit exit = events_.AwaitExit(rank);
    EXPECT_EQ(exit.error(), "notified");
    EXPECT_TRUE(exit.peer_failed());
    EXPECT_FALSE(exit.cancelled());
  }
  events_.Await("gone");
}

TEST_F(RankSupervisorTest, RankThatLostAPeerIsNotTheCause) {
  Start();
  supervisor_->Launch(Launch("loses-peer", 1, {0, 1}));
  const v1::RankExit left = events_.AwaitExit(0), killed = events_.AwaitExit(1);
  EXPECT_EQ(left.exit_code(), kPeerFailedExitCode);
  EXPECT_EQ(killed.signal(), SIGKILL);
  EXPECT_FALSE(killed.peer_failed());
  events_.Await("gone");
}

TEST_F(RankSupervisorTest, StopReachesARankInSigstop) {
  Start();
  supervisor_->Launch(Launch("stay", 1, {0}));
  events_.Await("ready 0");
  ASSERT_EQ(kill(FactsOf(0).pid, SIGSTOP), 0);
  supervisor_->Stop(Stop(1, 60000));
  EXPECT_EQ(events_.AwaitExit(0).signal(), SIGTERM);
}

TEST_F(RankSupervisorTest, ExitHasTheFirstCountedStep) {
  Start();
  supervisor_->Launch(Launch("skip", 1, {0}));
  const v1::RankExit exit = events_.AwaitExit(0);
  EXPECT_EQ(exit.first_counted_step(), 3);
  EXPECT_EQ(exit.last_step(), 5);
  EXPECT_EQ(exit.last_report().step(), 5);
}

TEST_F(RankSupervisorTest, ExitHasThePositionOfAKilledRank) {
  Start();
  supervisor_->Launch(Launch("blocks-in-reduce", 1, {0}));
  events_.Await("ready 0");
  ASSERT_EQ(kill(FactsOf(0).pid, SIGKILL), 0);
  const v1::RankExit exit = events_.AwaitExit(0);
  EXPECT_EQ(exit.signal(), SIGKILL);
  EXPECT_EQ(exit.position(), kInReduce);
}

TEST_F(RankSupervisorTest, LocateReportsAStoppedRank) {
  Start();
  supervisor_->Launch(Launch("blocks-in-reduce", 1, {0, 1}));
  for (const int rank : {0, 1}) events_.Await(absl::StrCat("ready ", rank));
  StopRank(1);
  supervisor_->Locate(Locate(2));  // An attempt that is not hosted: no event.
  supervisor_->Locate(Locate(1));
  events_.Await(absl::StrCat("stood 0: ", kInReduce));
  events_.Await(absl::StrCat("stood 1: stopped by a signal; ", kInReduce));
  supervisor_->HostedAttempts();
  EXPECT_EQ(logs_.Tail({{"job", 1}, 0}, 9),
            (std::vector<std::string>{
                "blocked", absl::StrCat("[fsdpd-agent: no step for 11 s; blocked in ", kInReduce, "]")}));
  // A resumed rank is not reported as stopped.
  ContinueRank(1);
  supervisor_->Locate(Locate(1));
  events_.Await(absl::StrCat("stood 1: ", kInReduce));
}

TEST_F(RankSupervisorTest, TraceReachesAllRanks) {
  Start();
  supervisor_->Launch(Launch("trace-on-order", 1, {0, 1}));
  for (const int rank : {0, 1}) events_.Await(absl::StrCat("ready ", rank));
  v1::Trace trace;
  trace.set_job_id("job");
  trace.set_first_step(7);
  trace.set_steps(1);
  for (const int attempt : {2, 1}) {  // An attempt that is not hosted: no order.
    trace.set_attempt(attempt);
    supervisor_->Trace(trace);
  }
  for (const int rank : {0, 1}) {
    events_.Await(absl::StrCat("traced ", rank, " step 7 in ", dir_.path(), "/job/attempt-1"));
    EXPECT_EQ(events_.AwaitExit(rank).exit_code(), 0);
  }
}

TEST_F(RankSupervisorTest, LocateWithoutFlightRecorderReportsUnknown) {
  Start();
  supervisor_->Launch(Launch("stay", 1, {0}));
  events_.Await("ready 0");
  supervisor_->Locate(Locate(1));
  events_.Await("stood 0: unknown position: flight recorder: no progress recorded yet");
  ASSERT_EQ(kill(FactsOf(0).pid, SIGKILL), 0);
  EXPECT_EQ(events_.AwaitExit(0).position(), "");
}

TEST_F(RankSupervisorTest, ExitWithoutFinishedIsAFailure) {
  Start();
  supervisor_->Launch(Launch("exits-without-finished", 1, {0}));
  const v1::RankExit exit = events_.AwaitExit(0);
  EXPECT_EQ(exit.exit_code(), 0);
  EXPECT_EQ(exit.error(), "exited with code 0 before it reported completion");
}

// An abort ends the collective in which a rank is blocked, and its lanes continue with later instructions.
TEST_F(RankSupervisorTest, ExitHasThePositionBeforePeerFailed) {
  Start();
  supervisor_->Launch(Launch("continues-after-abort", 1, {0, 1}));
  for (const int rank : {0, 1}) events_.Await(absl::StrCat("ready ", rank));
  ASSERT_EQ(kill(FactsOf(0).pid, SIGKILL), 0);
  const v1::RankExit exit = events_.AwaitExit(1);
  EXPECT_TRUE(exit.peer_failed());
  EXPECT_EQ(exit.error(), "notified");
  EXPECT_EQ(exit.position(), kInReduce);
}

TEST_F(RankSupervisorTest, CancelledExitHasThePosition) {
  Start();
  supervisor_->Launch(Launch("blocks-in-reduce", 1, {0}));
  events_.Await("ready 0");
  supervisor_->Stop(Stop(1, 60000));
  const v1::RankExit exit = events_.AwaitExit(0);
  EXPECT_TRUE(exit.cancelled());
  EXPECT_EQ(exit.position(), kInReduce);
}

TEST_F(RankSupervisorTest, StopsAFailedAttemptAfterALongDisconnect) {
  Start();
  supervisor_->SetConnected(false);
  supervisor_->HostedAttempts();
  supervisor_->Launch(Launch("first-dies", 1, {0, 1}));
  events_.AwaitExit(0);
  Pass(absl::Seconds(29));
  EXPECT_FALSE(events_.Has("exit 1"));
  Pass(absl::Seconds(2));
  EXPECT_TRUE(events_.AwaitExit(1).cancelled());
  events_.Await("stopped");
}

TEST_F(RankSupervisorTest, KeepsAHealthyAttemptDuringADisconnect) {
  Start();
  supervisor_->SetConnected(false);
  supervisor_->Launch(Launch("stay", 1, {0, 1}));
  events_.Await("ready 0");
  clock_.Advance(absl::Hours(24));
  for (int turn = 0; turn < 3; ++turn) EXPECT_EQ(supervisor_->HostedAttempts().size(), 1u);
  EXPECT_FALSE(events_.Has("exit 0"));
}

TEST_F(RankSupervisorTest, KillsDescendantsOfADeadRank) {
  Start();
  supervisor_->Launch(Launch("orphans-then-exit", 1, {0}));
  EXPECT_EQ(events_.AwaitExit(0).exit_code(), 0);
  events_.Await("gone");
  const absl::StatusOr<std::vector<ProcessFacts>> table = ReadProcessTable();
  ASSERT_TRUE(table.ok());
  for (const ProcessFacts& process : *table) EXPECT_NE(ReadRankMark(process.pid), "job/1/0");
}

TEST_F(RankSupervisorTest, RankThatDiesBeforeReadingItsSpecAffectsNoOther) {
  options_.rank_binary = "/bin/false";
  Start();
  v1::Launch launch = Launch("false", 1, {0});
  launch.mutable_spec()->set_name(std::string(512 << 10, 'x'));  // Larger than a socket buffer.
  for (int rank = 0; rank < 20; ++rank) {
    launch.set_attempt(rank + 1);
    launch.set_world_size(20);
    launch.set_first_rank(rank);
    supervisor_->Launch(launch);
    EXPECT_EQ(events_.AwaitExit(rank).exit_code(), 1);
  }
}

TEST_F(RankSupervisorTest, KillsARankThatViolatesTheProtocol) {
  Start();
  supervisor_->Launch(Launch("garbage", 1, {0}));
  const v1::RankExit exit = events_.AwaitExit(0);
  EXPECT_EQ(exit.signal(), SIGKILL);
  EXPECT_TRUE(absl::StrContains(exit.error(), "violated the agent protocol")) << exit.error();
}

// Logs whose first Tail() throws, as reading a truncated log once did, and whose opening for a job throws.
class ThrowingLogs : public LogKeeper {
 public:
  explicit ThrowingLogs(const std::string& dir) : LogKeeper(dir, [](v1::LogLines) { return true; }) {}
  absl::StatusOr<UniqueFd> OpenForRank(const RankId& id) override {
    if (id.of.job_id == "no-log") throw std::bad_alloc();
    return LogKeeper::OpenForRank(id);
  }
  std::vector<std::string> Tail(const RankId& id, int lines) const override {
    if (id.of.job_id == "job" && !thrown_.exchange(true)) throw std::length_error("basic_string::_M_create");
    return LogKeeper::Tail(id, lines);
  }

 private:
  mutable std::atomic<bool> thrown_{false};
};

TEST_F(RankSupervisorTest, ExceptionInARankIsCountedAndItsExitIsReported) {
  std::atomic<int> errors{0};
  options_.errors = InternalErrors([&errors] { ++errors; });
  ThrowingLogs logs(dir_.path());
  supervisor_ = std::make_unique<RankSupervisor>(options_, &logs, &events_, &clock_);
  v1::Launch neighbor = Launch("stay", 1, {1});
  neighbor.set_job_id("neighbor");
  neighbor.set_first_rank(1);  // Distinguishes events.
  neighbor.set_world_size(2);
  supervisor_->Launch(Launch("stay", 1, {0}));
  supervisor_->Launch(neighbor);
  for (const int rank : {0, 1}) events_.Await(absl::StrCat("ready ", rank));
  ASSERT_EQ(kill(FactsOf(0).pid, SIGKILL), 0);
  while (errors == 0) std::this_thread::yield();
  supervisor_->HostedAttempts();
  EXPECT_FALSE(events_.Has("exit 0"));
  Pass(absl::Seconds(1));
  EXPECT_EQ(events_.AwaitExit(0).signal(), SIGKILL);
  EXPECT_EQ(errors, 1);
  EXPECT_EQ(supervisor_->HostedAttempts().size(), 1U) << "the neighbor still runs";
  supervisor_.reset();  // Before its logs.
}

TEST_F(RankSupervisorTest, LaunchThatThrowsFailsAndExitsAreRetried) {
  class ThrowingEvents : public Recorder {
   public:
    void AttemptGone(const AttemptId& id, bool stopped, const v1::FreedMemory& memory) override {
      if (!thrown_.exchange(true)) throw std::bad_alloc();
      Recorder::AttemptGone(id, stopped, memory);
    }

   private:
    std::atomic<bool> thrown_{false};
  } events;
  std::atomic<int> errors{0};
  options_.errors = InternalErrors([&errors] { ++errors; });
  ThrowingLogs logs(dir_.path());
  supervisor_ = std::make_unique<RankSupervisor>(options_, &logs, &events, &clock_);
  v1::Launch launch = Launch("stay", 1, {0});
  launch.set_job_id("no-log");
  supervisor_->Launch(launch);
  const v1::RankExit refused = events.AwaitExit(0);
  EXPECT_EQ(refused.error_class().kind(), v1::ErrorClass::KIND_NODE);
  EXPECT_EQ(refused.newer_attempt(), 0);
  EXPECT_TRUE(absl::StrContains(refused.error(), "internal error of the agent")) << refused.error();
  launch.set_job_id("job");
  launch.set_first_rank(1);  // Distinguishes events.
  launch.set_world_size(2);
  supervisor_->Launch(launch);
  events.Await("ready 1");
  supervisor_->Stop(Stop(1, 1));
  while (errors < 3) Pass(absl::Seconds(1));  // Tail() throws for it too.
  Pass(absl::Seconds(1));
  events.Await("stopped");
  supervisor_.reset();  // Before its logs and events.
}

TEST_F(RankSupervisorTest, FullDiskCostsTheLogOnly) {
  std::filesystem::create_directories(dir_.File("job/attempt-1"));
  std::filesystem::create_symlink("/dev/full", dir_.File("job/attempt-1/rank-0.log"));
  std::ofstream(dir_.File("job/attempt-2")) << "a file where the directory should be";
  Start();
  supervisor_->Launch(Launch("flood", 1, {0}));
  EXPECT_EQ(events_.AwaitExit(0).exit_code(), 0);
  events_.Await("gone");
  v1::Launch second = Launch("flood", 2, {0});
  second.set_world_size(2);
  second.set_first_rank(1);
  supervisor_->Launch(second);
  EXPECT_EQ(events_.AwaitExit(1).exit_code(), 0);
}

}  // namespace
}  // namespace fsdpd
