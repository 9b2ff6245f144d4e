// Tests of a complete agent against a scripted coordinator over real gRPC, with real rank processes
// (fake_rank).
#include "agent/agent.h"

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <thread>

#include "agent/ranks/process_tree.h"
#include "agent/testing/agent_case.h"

namespace fsdpd {
namespace {

// Live processes with the mark of a rank of `job`, anywhere in the process tree.
std::vector<pid_t> MarkedProcesses(const std::string& job) {
  std::vector<pid_t> pids;
  const absl::StatusOr<std::vector<ProcessFacts>> table = ReadProcessTable();
  EXPECT_TRUE(table.ok()) << table.status();
  for (const ProcessFacts& process : table.value()) {
    if (process.alive() && absl::StartsWith(ReadRankMark(process.pid), job + "/"))
      pids.push_back(process.pid);
  }
  return pids;
}

TEST(Agent, RegistersAndSendsHeartbeats) {
  ScriptedCoordinator coordinator;
  Node node(&coordinator);
  const v1::Register registration = coordinator.AwaitRegister(1);
  EXPECT_EQ(registration.node(), "node-0");
  EXPECT_EQ(registration.device(), v1::DEVICE_CPU);
  EXPECT_EQ(registration.slots(), 4);
  EXPECT_EQ(registration.memory_bytes_per_slot(), 1 << 20);
  EXPECT_EQ(registration.host_memory_bytes(), 1 << 30);
  EXPECT_EQ(registration.metrics_endpoint(), node.agent->metrics_endpoint());
  EXPECT_EQ(registration.instance().size(), 32u);
  EXPECT_EQ(registration.hosted_size(), 0);
  EXPECT_TRUE(registration.log_windows());
  int beats = 0;
  coordinator.Await([&beats](const v1::AgentMessage& m) { return m.has_heartbeat() && ++beats == 3; });
}

TEST(Agent, ProbesMemoryAtRegistration) {
  ScriptedCoordinator coordinator;
  std::atomic<int64_t> memory{4000};
  Node node(&coordinator, /*slots=*/4, [&memory]() -> absl::StatusOr<DeviceOffer> {
    if (memory == 0) return absl::UnavailableError("no driver");
    return DeviceOffer{v1::DEVICE_CPU, 4, memory};
  });
  EXPECT_EQ(coordinator.AwaitRegister(1).memory_bytes_per_slot(), 4000);
  memory = 3000;
  coordinator.Disconnect();
  coordinator.Resume();
  EXPECT_EQ(coordinator.AwaitRegister(2).memory_bytes_per_slot(), 3000);
  memory = 0;
  coordinator.Disconnect();
  coordinator.Resume();
  EXPECT_EQ(coordinator.AwaitRegister(3).memory_bytes_per_slot(), 1 << 20) << "what it started with";
}

TEST(Agent, RunsRanksFromLaunchToExit) {
  ScriptedCoordinator coordinator;
  Node node(&coordinator);
  coordinator.AwaitRegister(1);
  coordinator.Send(Launch("train", 1, 2));
  coordinator.AwaitReady("train-k3x9q2", 1, 1);
  for (int rank : {0, 1}) {
    const v1::RankExit exit = coordinator.AwaitExit("train-k3x9q2", 1, rank).exit();
    EXPECT_EQ(exit.exit_code(), 0);
    EXPECT_EQ(exit.signal(), 0);
    EXPECT_EQ(exit.error(), "");
    EXPECT_FALSE(exit.cancelled());
    EXPECT_EQ(exit.rank(), rank);
    EXPECT_NEAR(static_cast<double>(exit.unix_nanos()), static_cast<double>(absl::GetCurrentTimeNanos()),
                300e9);
    EXPECT_EQ(absl::StrJoin(exit.log_tail(), "|"), absl::StrCat("trained ", rank, " of 2"));
  }
  std::vector<int64_t> steps;
  for (const v1::AgentMessage& message : coordinator.Received()) {
    if (message.rank().has_step()) {
      EXPECT_EQ(message.rank().rank(), 0) << "only rank 0 reports to the coordinator";
      steps.push_back(message.rank().step().step());
    }
  }
  EXPECT_EQ(steps, (std::vector<int64_t>{1, 2, 3}));
}

TEST(Agent, ReportsErrorAndLogTailOfAFailedRank) {
  ScriptedCoordinator coordinator;
  Node node(&coordinator);
  coordinator.AwaitRegister(1);
  coordinator.Send(Launch("fail"));
  const v1::RankExit exit = coordinator.AwaitExit("fail-k3x9q2", 1, 0).exit();
  EXPECT_EQ(exit.exit_code(), 4);
  EXPECT_EQ(exit.error(), "loss is NaN at step 3");
  ASSERT_EQ(exit.log_tail_size(), kLogTailLines);
  EXPECT_EQ(exit.log_tail(0), "line 11");
  EXPECT_EQ(exit.log_tail(kLogTailLines - 1), "line 50");
  coordinator.Send(Launch("segv"));
  EXPECT_EQ(coordinator.AwaitExit("segv-k3x9q2", 1, 0).exit().signal(), SIGSEGV);
}

TEST(Agent, KilledRankLeavesOthersToTheCoordinator) {
  ScriptedCoordinator coordinator;
  Node node(&coordinator);
  coordinator.AwaitRegister(1);
  coordinator.Send(Launch("stay", 1, 2));
  coordinator.AwaitReady("stay-k3x9q2", 1, 0);
  coordinator.AwaitReady("stay-k3x9q2", 1, 1);
  pid_t victim = 0;
  for (const pid_t pid : MarkedProcesses("stay-k3x9q2")) {
    if (ReadRankMark(pid) == "stay-k3x9q2/1/1") victim = pid;
  }
  ASSERT_GT(victim, 0);
  ASSERT_EQ(kill(victim, SIGKILL), 0);
  const v1::RankExit exit = coordinator.AwaitExit("stay-k3x9q2", 1, 1).exit();
  EXPECT_EQ(exit.signal(), SIGKILL);
  EXPECT_FALSE(exit.cancelled());
  EXPECT_EQ(MarkedProcesses("stay-k3x9q2").size(), 1u);
  coordinator.Send(Stop("stay-k3x9q2", 1, 5000));
  const v1::RankExit other = coordinator.AwaitExit("stay-k3x9q2", 1, 0).exit();
  EXPECT_EQ(other.signal(), SIGTERM);
  EXPECT_TRUE(other.cancelled());
}

TEST(Agent, StopsTheWholeTreeBeforeStopped) {
  ScriptedCoordinator coordinator;
  Node node(&coordinator);
  coordinator.AwaitRegister(1);
  coordinator.Send(Launch("orphans", 1, 2));
  coordinator.AwaitReady("orphans-k3x9q2", 1, 0);
  coordinator.AwaitReady("orphans-k3x9q2", 1, 1);
  EXPECT_EQ(MarkedProcesses("orphans-k3x9q2").size(), 6u);
  coordinator.Send(Stop("orphans-k3x9q2", 1, 5000));
  coordinator.AwaitStopped("orphans-k3x9q2", 1);
  EXPECT_EQ(MarkedProcesses("orphans-k3x9q2"), std::vector<pid_t>{});
}

TEST(Agent, StopOfAnUnknownAttemptIsAnsweredImmediately) {
  ScriptedCoordinator coordinator;
  Node node(&coordinator);
  coordinator.AwaitRegister(1);
  coordinator.Send(Stop("train-k3x9q2", 4, 5000));
  coordinator.AwaitStopped("train-k3x9q2", 4);
  coordinator.Send(Launch("train", 4));  // Late: the attempt was stopped.
  EXPECT_TRUE(absl::StrContains(coordinator.AwaitExit("train-k3x9q2", 4, 0).exit().error(), "stale"));
}

TEST(Agent, RelaysRendezvousBetweenRanks) {
  ScriptedCoordinator coordinator;
  Node node(&coordinator);
  coordinator.AwaitRegister(1);
  coordinator.Send(Launch("exchange", 1, 3, /*world=*/4));
  coordinator.SetRendezvous("addr/3", "rank 3");
  for (int rank : {0, 1, 2}) {
    const v1::RankExit exit = coordinator.AwaitExit("exchange-k3x9q2", 1, rank).exit();
    EXPECT_EQ(exit.exit_code(), 0) << exit.error();
  }
}

bool IsOfRendezvous(const v1::AgentMessage& message) {
  return message.has_rendezvous_get() || message.has_rendezvous_set();
}

TEST(Agent, AnswersRendezvousOfLocalAttempts) {
  ScriptedCoordinator coordinator;
  Node node(&coordinator);
  coordinator.AwaitRegister(1);
  coordinator.Send(Launch("exchange", 1, 3));
  for (int rank : {0, 1, 2}) {
    const v1::RankExit exit = coordinator.AwaitExit("exchange-k3x9q2", 1, rank).exit();
    EXPECT_EQ(exit.exit_code(), 0) << exit.error();
  }
  EXPECT_EQ(coordinator.Count(IsOfRendezvous), 0);
}

// Two ranks get a LeaveOrder while the coordinator is away, and exit after saving.
void LeaveAlone(ScriptedCoordinator* coordinator, Node* node) {
  coordinator->AwaitRegister(1);
  v1::CoordinatorMessage launch = Launch("exchange-on-leave", 1, 2);
  launch.mutable_launch()->mutable_spec()->mutable_checkpoint()->set_dir("/runs/7");
  coordinator->Send(launch);
  for (int rank : {0, 1}) coordinator->AwaitReady("exchange-on-leave-k3x9q2", 1, rank);
  coordinator->Disconnect();
  node->agent->StopRanks(absl::Minutes(1));
  while (!node->agent->Stopped()) std::this_thread::yield();
}

TEST(Agent, LocalRanksSaveAndLeaveWhileDisconnected) {
  ScriptedCoordinator coordinator;
  Node node(&coordinator);
  LeaveAlone(&coordinator, &node);
  coordinator.Resume();
  for (int rank : {0, 1}) {
    const v1::RankExit exit = coordinator.AwaitExit("exchange-on-leave-k3x9q2", 1, rank).exit();
    EXPECT_EQ(exit.error(), "exchanged") << exit.signal();
    EXPECT_TRUE(exit.drained());
  }
}

TEST(Agent, NextAgentDeliversUndeliveredExits) {
  ScriptedCoordinator coordinator;
  Node node(&coordinator);
  LeaveAlone(&coordinator, &node);
  while (node.agent->AllDelivered()) std::this_thread::yield();  // Until the disconnect is noticed.
  node.agent->Detach();
  node.Start();
  coordinator.Resume();
  const v1::Register again = coordinator.AwaitRegister(2);
  ASSERT_EQ(again.hosted_size(), 1) << "by their exits, which are on their way";
  EXPECT_EQ(again.hosted(0).ranks_size(), 2);
  for (int rank : {0, 1}) {
    const v1::RankExit exit = coordinator.AwaitExit("exchange-on-leave-k3x9q2", 1, rank).exit();
    EXPECT_TRUE(exit.drained());
    EXPECT_EQ(exit.error(), "exchanged");
  }
  coordinator.AwaitStopped("exchange-on-leave-k3x9q2", 1);
}

TEST(Agent, StoresNothingIfAllWasDelivered) {
  ScriptedCoordinator coordinator;
  Node node(&coordinator);
  coordinator.AwaitRegister(1);
  coordinator.Send(Launch("stay"));
  coordinator.AwaitReady("stay-k3x9q2", 1, 0);
  coordinator.Disconnect();
  node.agent->StopRanks(absl::Minutes(1));
  while (!node.agent->Stopped()) std::this_thread::yield();
  while (node.agent->AllDelivered()) std::this_thread::yield();  // Until the disconnect is noticed.
  coordinator.Resume();                                          // Within the grace period.
  while (!node.agent->AllDelivered()) std::this_thread::yield();
  coordinator.AwaitStopped("stay-k3x9q2", 1);
  node.agent->Detach();
  node.Start();
  EXPECT_EQ(coordinator.AwaitRegister(3).hosted_size(), 0);
}

TEST(Agent, RejectsARankThatSetsAKeyToTwoValues) {
  ScriptedCoordinator coordinator;
  Node node(&coordinator);
  coordinator.AwaitRegister(1);
  coordinator.Send(Launch("set-twice"));
  const v1::RankExit exit = coordinator.AwaitExit("set-twice-k3x9q2", 1, 0).exit();
  EXPECT_TRUE(absl::StrContains(exit.error(), "key 'k' was set twice with different values")) << exit.error();
}

TEST(Agent, RepeatsGetsAfterACoordinatorRestart) {
  ScriptedCoordinator coordinator;
  Node node(&coordinator);
  coordinator.AwaitRegister(1);
  coordinator.HoldRendezvous(true);
  coordinator.Send(Launch("exchange", 1, 2, /*world=*/3));
  const auto is_get = [](const v1::AgentMessage& m) { return m.has_rendezvous_get(); };
  const auto is_set = [](const v1::AgentMessage& m) { return m.has_rendezvous_set(); };
  int gets = 0, sets = 0;
  coordinator.Await([&](const v1::AgentMessage& m) { return is_get(m) && ++gets == 2; });
  coordinator.Await([&](const v1::AgentMessage& m) { return is_set(m) && ++sets == 2; });
  coordinator.Disconnect();
  coordinator.ForgetRendezvous();
  coordinator.SetRendezvous("addr/2", "rank 2");  // Set by the agent of rank 2, which has reconnected.
  coordinator.HoldRendezvous(false);
  coordinator.Resume();
  EXPECT_EQ(coordinator.AwaitExit("exchange-k3x9q2", 1, 0).exit().exit_code(), 0);
  EXPECT_EQ(coordinator.AwaitExit("exchange-k3x9q2", 1, 1).exit().exit_code(), 0);
  EXPECT_EQ(coordinator.Count(is_get), 4);
}

TEST(Agent, KeepsRanksRunningWhileDisconnected) {
  ScriptedCoordinator coordinator;
  Node node(&coordinator);
  coordinator.AwaitRegister(1);
  coordinator.Send(Launch("stay", 1, 2));
  coordinator.AwaitReady("stay-k3x9q2", 1, 0);
  coordinator.AwaitReady("stay-k3x9q2", 1, 1);
  coordinator.Disconnect();
  const std::vector<pid_t> ranks = MarkedProcesses("stay-k3x9q2");
  ASSERT_EQ(ranks.size(), 2u);
  const std::string dead = ReadRankMark(ranks[0]);
  ASSERT_EQ(kill(ranks[0], SIGKILL), 0);
  coordinator.Resume();
  const v1::Register again = coordinator.AwaitRegister(2);
  ASSERT_EQ(again.hosted_size(), 1);
  EXPECT_EQ(again.hosted(0).job_id(), "stay-k3x9q2");
  // The dead rank is still hosted: its exit message ends it.
  EXPECT_EQ(again.hosted(0).ranks_size(), 2);
  EXPECT_EQ(coordinator.AwaitExit("stay-k3x9q2", 1, dead.back() - '0').exit().signal(), SIGKILL);
  EXPECT_EQ(MarkedProcesses("stay-k3x9q2").size(), 1u);
}

TEST(Agent, ResendsUnsettledExits) {
  ScriptedCoordinator coordinator;
  Node node(&coordinator);
  coordinator.AwaitRegister(1);
  coordinator.Send(Launch("train"));
  coordinator.AwaitExit("train-k3x9q2", 1, 0);
  coordinator.Disconnect();
  coordinator.Resume();
  coordinator.AwaitRegister(2);
  int exits = 0;
  coordinator.Await([&](const v1::AgentMessage& m) { return m.rank().has_exit() && ++exits == 2; });
  EXPECT_EQ(coordinator.Count([](const v1::AgentMessage& m) { return m.rank().has_step(); }), 3);
}

TEST(Agent, ResendsRestoredAndSavedCheckpoints) {
  ScriptedCoordinator coordinator;
  Node node(&coordinator);
  coordinator.AwaitRegister(1);
  v1::CoordinatorMessage launch = Launch("save", 2, 2);
  launch.mutable_launch()->mutable_spec()->mutable_checkpoint()->set_dir("/runs/7");
  coordinator.Send(launch);
  const v1::RestoredCheckpoint restored = coordinator.AwaitReady("save-k3x9q2", 2, 0).ready().restored();
  EXPECT_EQ(restored.step(), 4);
  EXPECT_EQ(restored.path(), "/runs/7/iter_4");
  ASSERT_EQ(restored.skipped_checkpoints_size(), 1);
  coordinator.AwaitExit("save-k3x9q2", 2, 0);
  coordinator.Disconnect();
  coordinator.Resume();
  coordinator.AwaitRegister(2);
  std::vector<v1::RankUpdate> saved;
  coordinator.Await([&](const v1::AgentMessage& m) {
    if (m.rank().has_saved()) saved.push_back(m.rank());
    return saved.size() == 4;
  });
  for (const size_t first : {0, 2}) {
    EXPECT_EQ(saved[first].rank(), 0);
    EXPECT_EQ(saved[first].attempt(), 2);
    EXPECT_EQ(saved[first].saved().step(), 6);
    EXPECT_EQ(saved[first].saved().path(), "/runs/7/iter_6");
    EXPECT_EQ(saved[first].saved().bytes(), 4096);
    EXPECT_EQ(saved[first + 1].saved().step(), 8);
    EXPECT_EQ(saved[first + 1].saved().error(), "No space left on device");
  }
}

TEST(Agent, RejectsStaleAttemptsAndLaunchesWithoutFreeSlots) {
  ScriptedCoordinator coordinator;
  Node node(&coordinator, /*slots=*/2);
  EXPECT_TRUE(coordinator.AwaitRegister(1).acknowledges_launches());
  coordinator.Send(Launch("stay", 2, 2));
  coordinator.AwaitReady("stay-k3x9q2", 2, 1);
  EXPECT_EQ(coordinator.Count([](const auto& m) { return m.rank().has_launch_acknowledged(); }), 1);
  coordinator.Send(Launch("stay", 1));
  EXPECT_EQ(coordinator.AwaitExit("stay-k3x9q2", 1, 0).exit().error(),
            "launch rejected: attempt 1 is stale: attempt 2 was already here");
  coordinator.Send(Launch("train"));
  EXPECT_EQ(coordinator.AwaitExit("train-k3x9q2", 1, 0).exit().error(),
            "launch rejected: 1 ranks need as many slots, and 0 of 2 are free");
  EXPECT_EQ(MarkedProcesses("stay-k3x9q2").size(), 2u) << "the running attempt is untouched";
}

TEST(Agent, EndsAStreamThatMixesGenerations) {
  ScriptedCoordinator coordinator;
  Node node(&coordinator);
  coordinator.AwaitRegister(1);
  coordinator.SendWithGeneration(Launch("train"), 77);
  coordinator.AwaitRegister(2);
  EXPECT_EQ(coordinator.Count([](const v1::AgentMessage& m) { return m.rank().has_exit(); }), 0);
}

TEST(Agent, StopsIfItsNameIsTakenAtFirstRegistration) {
  ScriptedCoordinator coordinator;
  coordinator.Refuse(grpc::Status(grpc::StatusCode::ALREADY_EXISTS, "node node-0 is attached"));
  Node node(&coordinator);
  const absl::Status why = node.refused.get_future().get();
  EXPECT_EQ(why.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(why.message(), "node node-0 is attached");
}

TEST(Agent, RetriesIfItsOldStreamHoldsTheName) {
  ScriptedCoordinator coordinator;
  Node node(&coordinator);
  coordinator.AwaitRegister(1);
  coordinator.Disconnect();
  coordinator.Refuse(grpc::Status(grpc::StatusCode::ALREADY_EXISTS, "node node-0 is attached"));
  coordinator.Resume();
  coordinator.AwaitRegister(2);
}

TEST(Agent, StopsRanksAndReportsThemOnShutdown) {
  ScriptedCoordinator coordinator;
  Node node(&coordinator);
  coordinator.AwaitRegister(1);
  coordinator.Send(Launch("stubborn"));
  coordinator.AwaitReady("stubborn-k3x9q2", 1, 0);
  node.agent->StopRanks(absl::Hours(1));
  EXPECT_FALSE(node.agent->Stopped());
  node.agent->StopRanks(absl::ZeroDuration());  // Like a second SIGINT.
  const v1::RankExit exit = coordinator.AwaitExit("stubborn-k3x9q2", 1, 0).exit();
  EXPECT_EQ(exit.signal(), SIGKILL);
  EXPECT_TRUE(exit.cancelled());
  coordinator.AwaitStopped("stubborn-k3x9q2", 1);
  EXPECT_TRUE(node.agent->Stopped());
  node.agent->Detach();
  EXPECT_EQ(MarkedProcesses("stubborn-k3x9q2"), std::vector<pid_t>{});
}

TEST(Agent, ReportsStartupErrors) {
  ScriptedCoordinator coordinator;
  Node node(&coordinator);
  AgentOptions options;
  options.coordinator = coordinator.address();
  options.node = "node-1";
  options.rank_binary = "/no/such/fsdpd-rank";
  EXPECT_EQ(Agent::Start(options, nullptr).status().code(), absl::StatusCode::kNotFound);
  options.rank_binary = node.work.path();  // A directory.
  EXPECT_EQ(Agent::Start(options, nullptr).status().code(), absl::StatusCode::kFailedPrecondition);
  options.rank_binary = kFakeRank;
  options.work_dir = "/proc/no-such-directory";
  EXPECT_EQ(Agent::Start(options, nullptr).status().code(), absl::StatusCode::kPermissionDenied);
  options.work_dir = node.work.path();
  options.metrics_listen = node.agent->metrics_endpoint();  // In use.
  EXPECT_EQ(Agent::Start(options, nullptr).status().code(), absl::StatusCode::kUnavailable);
  options.metrics_listen = "nowhere";
  EXPECT_EQ(Agent::Start(options, nullptr).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace fsdpd
