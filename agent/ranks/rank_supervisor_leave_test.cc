// Tests of ranks that are ordered to save and leave: times, signals, and how their exits are reported.
#include <absl/strings/str_cat.h>
#include <signal.h>

#include "agent/testing/supervisor_case.h"

namespace fsdpd {
namespace {

using RankSupervisorLeaveTest = SupervisorCase;

TEST_F(RankSupervisorLeaveTest, SavingRankGetsLeaveOrderBeforeSigterm) {
  Start();
  supervisor_->Launch(SavingLaunch("leave-on-order", {0}));
  events_.Await("ready 0");
  supervisor_->Stop(SavingStop(60000));
  const v1::RankExit exit = events_.AwaitExit(0);
  EXPECT_EQ(exit.error(), "left within 59200 ms");
  EXPECT_EQ(exit.exit_code(), 143);
  EXPECT_TRUE(exit.cancelled());
  events_.Await("stopped");
}

TEST_F(RankSupervisorLeaveTest, RanksSaveWhenTheAgentStops) {
  Start();
  supervisor_->Launch(SavingLaunch("leave-on-order", {0, 1}));
  for (const int rank : {0, 1}) events_.Await(absl::StrCat("ready ", rank));
  supervisor_->StopAll(absl::Seconds(60));
  for (const int rank : {0, 1}) EXPECT_EQ(events_.AwaitExit(rank).error(), "left within 59200 ms");
  events_.Await("stopped");
}

TEST_F(RankSupervisorLeaveTest, SendsSigtermImmediatelyWithoutSaveOrTime) {
  struct Case {
    std::string name;
    bool has_checkpoints, may_save;
    int64_t grace_ms;
  };
  Start();
  int attempt = 0;
  for (const Case& each : {Case{"no checkpoints", false, true, 60000}, Case{"may not", true, false, 60000},
                           Case{"too short", true, true, 800}}) {
    SCOPED_TRACE(each.name);
    ++attempt;
    v1::Launch launch = SavingLaunch("leave-on-order", {0});
    launch.set_attempt(attempt);
    launch.set_job_id(absl::StrCat("job-", attempt));
    if (!each.has_checkpoints) launch.mutable_spec()->clear_checkpoint();
    launch.set_first_rank(attempt);  // Distinguishes events.
    launch.set_world_size(attempt + 1);
    supervisor_->Launch(launch);
    events_.Await(absl::StrCat("ready ", attempt));
    v1::Stop stop = Stop(attempt, each.grace_ms);
    stop.set_job_id(launch.job_id());
    stop.set_save(each.may_save);
    supervisor_->Stop(stop);
    EXPECT_EQ(events_.AwaitExit(attempt).signal(), SIGTERM);
  }
}

TEST_F(RankSupervisorLeaveTest, RankThatIgnoresLeaveOrderGetsSigtermInTime) {
  Start();
  supervisor_->Launch(SavingLaunch("stay", {0}));
  events_.Await("ready 0");
  supervisor_->Stop(SavingStop(60500));
  supervisor_->HostedAttempts();
  Pass(absl::Seconds(59));
  EXPECT_FALSE(events_.Has("exit 0"));
  Pass(absl::Seconds(1));
  EXPECT_EQ(events_.AwaitExit(0).signal(), SIGTERM);
}

TEST_F(RankSupervisorLeaveTest, RankThatBlocksOnLeaveOrderIsKilled) {
  Start();
  supervisor_->Launch(SavingLaunch("stubborn", {0}));
  events_.Await("ready 0");
  supervisor_->Stop(SavingStop(60500));
  supervisor_->HostedAttempts();
  Pass(absl::Seconds(60));
  EXPECT_FALSE(events_.Has("exit 0"));
  Pass(absl::Seconds(1));
  EXPECT_EQ(events_.AwaitExit(0).signal(), SIGKILL);
}

TEST_F(RankSupervisorLeaveTest, LeaveOrderReachesARankInSigstop) {
  Start();
  supervisor_->Launch(SavingLaunch("leave-on-order", {0}));
  events_.Await("ready 0");
  ASSERT_EQ(kill(FactsOf(0).pid, SIGSTOP), 0);
  supervisor_->Stop(SavingStop(60000));
  EXPECT_EQ(events_.AwaitExit(0).error(), "left within 59200 ms");
}

TEST_F(RankSupervisorLeaveTest, PeersGetSigtermSoonAfterTheFirstRankLeft) {
  Start();
  supervisor_->Launch(SavingLaunch("one-leaves-on-order", {0, 1}));
  for (const int rank : {0, 1}) events_.Await(absl::StrCat("ready ", rank));
  supervisor_->Stop(SavingStop(60000));
  EXPECT_EQ(events_.AwaitExit(0).exit_code(), 143);
  supervisor_->HostedAttempts();  // kPeerExitTime has started.
  Pass(absl::Seconds(1));
  EXPECT_FALSE(events_.Has("exit 1"));
  Pass(absl::Seconds(1));
  EXPECT_EQ(events_.AwaitExit(1).signal(), SIGTERM);
}

TEST_F(RankSupervisorLeaveTest, PeersGetSigtermImmediatelyAfterADeath) {
  Start();
  supervisor_->Launch(SavingLaunch("one-dies-on-order", {0, 1}));
  for (const int rank : {0, 1}) events_.Await(absl::StrCat("ready ", rank));
  supervisor_->StopAll(absl::Seconds(60));
  const v1::RankExit died = events_.AwaitExit(0);
  EXPECT_EQ(died.signal(), SIGSEGV);
  EXPECT_FALSE(died.cancelled()) << "nobody stopped it";
  EXPECT_FALSE(died.drained());
  const v1::RankExit stopped = events_.AwaitExit(1);  // Without advancing the clock.
  EXPECT_EQ(stopped.signal(), SIGTERM);
  EXPECT_TRUE(stopped.cancelled());
}

TEST_F(RankSupervisorLeaveTest, ExitsOnAgentShutdownAreDrained) {
  Start();
  supervisor_->Launch(SavingLaunch("leave-on-order", {0}));
  events_.Await("ready 0");
  v1::Launch stubborn = Launch("stubborn", 1, {1});
  stubborn.set_job_id("other");
  stubborn.set_first_rank(1);
  stubborn.set_world_size(2);
  supervisor_->Launch(stubborn);
  events_.Await("ready 1");
  supervisor_->StopAll(absl::Seconds(10));
  EXPECT_TRUE(events_.AwaitExit(0).drained());
  supervisor_->HostedAttempts();
  Pass(absl::Seconds(11));
  const v1::RankExit killed = events_.AwaitExit(1);
  EXPECT_EQ(killed.signal(), SIGKILL) << "it did not follow";
  EXPECT_TRUE(killed.drained());
}

TEST_F(RankSupervisorLeaveTest, ExitsOnJobStopAreNotDrained) {
  Start();
  supervisor_->Launch(SavingLaunch("leave-on-order", {0}));
  events_.Await("ready 0");
  supervisor_->Stop(SavingStop(60000));
  const v1::RankExit exit = events_.AwaitExit(0);
  EXPECT_TRUE(exit.cancelled());
  EXPECT_FALSE(exit.drained());
}

TEST_F(RankSupervisorLeaveTest, SecondStopShortensTheTimeToSave) {
  Start();
  supervisor_->Launch(SavingLaunch("stay", {0}));
  events_.Await("ready 0");
  supervisor_->Stop(SavingStop(60000));
  supervisor_->HostedAttempts();
  EXPECT_FALSE(events_.Has("exit 0"));
  supervisor_->Stop(SavingStop(500));
  EXPECT_EQ(events_.AwaitExit(0).signal(), SIGTERM);
}

TEST_F(RankSupervisorLeaveTest, FailedAttemptDoesNotSave) {
  Start();
  supervisor_->Launch(SavingLaunch("first-dies", {0, 1}));
  events_.AwaitExit(0);
  supervisor_->Stop(SavingStop(60000));
  EXPECT_EQ(events_.AwaitExit(1).signal(), SIGTERM);
}

}  // namespace
}  // namespace fsdpd
