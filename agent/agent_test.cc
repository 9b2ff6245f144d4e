// Tests of a complete agent against a scripted coordinator over real gRPC, with real rank processes
// (fake_rank).
#include "agent/agent.h"

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_split.h>
#include <absl/time/clock.h>
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>

#include <atomic>
#include <fstream>
#include <functional>
#include <future>
#include <iterator>
#include <thread>

#include "agent/ranks/process_tree.h"
#include "agent/testing/scripted_coordinator.h"
#include "base/limits.h"
#include "base/temp_dir.h"
#include "base/testing/fake_nvml.h"

namespace fsdpd {
namespace {

// Test binaries run in the directory of their runfiles.
constexpr char kFakeRank[] = "agent/testing/fake_rank";

struct Node {
  explicit Node(ScriptedCoordinator* coordinator, int slots = 4,
                std::function<absl::StatusOr<DeviceOffer>()> probe = nullptr) {
    options.coordinator = coordinator->address();
    options.node = "node-0";
    options.offer.slots = slots;
    options.offer.memory_bytes_per_slot = 1 << 20;
    options.offer.host_memory_bytes = 1 << 30;
    options.probe = std::move(probe);
    options.work_dir = work.File("ranks");
    options.rank_binary = kFakeRank;
    Start();
  }
  void Start() {
    agent.reset();  // It holds the lock of the work directory.
    absl::StatusOr<std::unique_ptr<Agent>> started =
        Agent::Start(options, [this](const absl::Status& why) { refused.set_value(why); });
    EXPECT_TRUE(started.ok()) << started.status();
    agent = *std::move(started);
  }
  AgentOptions options;
  TempDir work;
  std::promise<absl::Status> refused;
  std::unique_ptr<Agent> agent;
};

v1::CoordinatorMessage Launch(const std::string& behavior, int attempt = 1, int ranks = 1, int world = 0) {
  v1::CoordinatorMessage message;
  v1::Launch* launch = message.mutable_launch();
  launch->set_job_id(behavior + "-k3x9q2");
  launch->set_attempt(attempt);
  launch->mutable_spec()->set_name(behavior);
  launch->mutable_spec()->mutable_train()->set_steps(3);
  launch->set_world_size(world == 0 ? ranks : world);
  launch->set_ranks(ranks);
  for (int i = 0; i < ranks; ++i) launch->add_devices(i);
  launch->mutable_memory_plan()->set_peak_bytes(400);  // Differs from what fake_rank reports.
  launch->mutable_memory_plan()->add_components()->set_name("optimizer");
  launch->mutable_memory_plan()->mutable_components(0)->set_bytes(400);
  return message;
}

v1::CoordinatorMessage Stop(const std::string& job, int attempt, int64_t grace_ms) {
  v1::CoordinatorMessage message;
  message.mutable_stop()->set_job_id(job);
  message.mutable_stop()->set_attempt(attempt);
  message.mutable_stop()->set_grace_ms(grace_ms);
  message.mutable_stop()->set_reason("test");
  return message;
}

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

std::string Fetch(const std::string& endpoint) {
  const std::vector<std::string> parts = absl::StrSplit(endpoint, ':');
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(std::stoi(parts[1])));
  inet_pton(AF_INET, parts[0].c_str(), &address.sin_addr);
  const UniqueFd fd(socket(AF_INET, SOCK_STREAM, 0));
  EXPECT_EQ(connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  const std::string request = "GET /metrics HTTP/1.0\r\n\r\n";
  EXPECT_EQ(send(fd.get(), request.data(), request.size(), 0), static_cast<ssize_t>(request.size()));
  std::string answer;
  char bytes[4096];
  for (ssize_t n; (n = recv(fd.get(), bytes, sizeof bytes, 0)) > 0;)
    answer.append(bytes, static_cast<size_t>(n));
  const size_t body = answer.find("\r\n\r\n");
  return body == std::string::npos ? "" : answer.substr(body + 4);
}

// Lines of one log request, and its error.
std::vector<std::string> LinesOf(ScriptedCoordinator* coordinator, int64_t request,
                                 std::string* error = nullptr) {
  const v1::AgentMessage end = coordinator->Await([&](const v1::AgentMessage& m) {
    return m.has_logs() && m.logs().request() == request && m.logs().end();
  });
  if (error != nullptr) *error = end.logs().error();
  std::vector<std::string> lines;
  for (const v1::AgentMessage& message : coordinator->Received()) {
    if (message.logs().request() != request) continue;
    for (const v1::LogLines::Line& line : message.logs().lines()) lines.push_back(line.line());
  }
  return lines;
}

v1::CoordinatorMessage ReadLogs(int64_t request, const std::string& job, int rank, bool follow = false,
                                int tail = 0) {
  v1::CoordinatorMessage message;
  v1::ReadLogs* ask = message.mutable_read_logs();
  ask->set_request(request);
  ask->set_job_id(job);
  ask->set_attempt(1);
  ask->set_rank(rank);
  ask->set_follow(follow);
  ask->set_tail_lines(tail);
  return message;
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

TEST(Agent, ReadsWholeLogsAndTails) {
  ScriptedCoordinator coordinator;
  Node node(&coordinator);
  coordinator.AwaitRegister(1);
  coordinator.Send(Launch("flood"));
  coordinator.AwaitExit("flood-k3x9q2", 1, 0);
  coordinator.Send(ReadLogs(1, "flood-k3x9q2", 0));
  const std::vector<std::string> all = LinesOf(&coordinator, 1);
  ASSERT_EQ(all.size(), 20002u);
  EXPECT_EQ(all[0], "flood 0");
  EXPECT_EQ(all[19999], "flood 19999");
  EXPECT_EQ(all[20000], std::string(kMaxLogLineBytes, 'x') + " [83616 bytes cut]");
  EXPECT_EQ(all[20001], "binary \xEF\xBF\xBD\xEF\xBF\xBD end");
  coordinator.Send(ReadLogs(2, "flood-k3x9q2", -1, false, 3));
  EXPECT_EQ(LinesOf(&coordinator, 2), (std::vector<std::string>{"flood 19999", all[20000], all[20001]}));
  std::string error;
  coordinator.Send(ReadLogs(3, "flood-k3x9q2", 7));
  EXPECT_EQ(LinesOf(&coordinator, 3, &error), std::vector<std::string>{});
  EXPECT_EQ(error, "this node has no log of job=flood-k3x9q2 attempt=1 rank=7");
  coordinator.Send(ReadLogs(4, "../etc", 0));
  LinesOf(&coordinator, 4, &error);
  EXPECT_TRUE(absl::StrContains(error, "job_id")) << error;
}

TEST(Agent, LogWithAWindowContinuesAfterAGrant) {
  ScriptedCoordinator coordinator;
  Node node(&coordinator);
  coordinator.AwaitRegister(1);
  coordinator.Send(Launch("flood"));
  coordinator.AwaitExit("flood-k3x9q2", 1, 0);
  v1::CoordinatorMessage ask = ReadLogs(1, "flood-k3x9q2", 0);
  ask.mutable_read_logs()->set_window_bytes(1);
  coordinator.Send(ask);
  coordinator.Await([](const v1::AgentMessage& m) { return m.logs().lines_size() > 0; });
  v1::CoordinatorMessage grant;
  grant.mutable_log_grant()->set_request(1);
  grant.mutable_log_grant()->set_bytes(1 << 30);
  coordinator.Send(grant);
  EXPECT_EQ(LinesOf(&coordinator, 1).size(), 20002u);
}

TEST(Agent, FollowsALogUntilItsRankEnds) {
  ScriptedCoordinator coordinator;
  Node node(&coordinator);
  coordinator.AwaitRegister(1);
  coordinator.Send(Launch("orphans"));
  coordinator.AwaitReady("orphans-k3x9q2", 1, 0);
  coordinator.Send(ReadLogs(5, "orphans-k3x9q2", 0, /*follow=*/true));
  coordinator.Await([](const v1::AgentMessage& m) {
    return m.logs().request() == 5 && m.logs().lines_size() > 0 && m.logs().lines(0).line() == "orphaned";
  });
  // Data written from now on is delivered too, including an incomplete last line.
  std::ofstream(node.work.File("ranks/orphans-k3x9q2/attempt-1/rank-0.log"), std::ios::app)
      << "later\nunfinished";
  coordinator.Await([](const v1::AgentMessage& m) {
    return m.logs().lines_size() > 0 && m.logs().lines(0).line() == "later";
  });
  EXPECT_EQ(coordinator.Count([](const v1::AgentMessage& m) { return m.logs().end(); }), 0);
  coordinator.Send(Stop("orphans-k3x9q2", 1, 1000));
  EXPECT_EQ(LinesOf(&coordinator, 5), (std::vector<std::string>{"orphaned", "later", "unfinished"}));
}

// Value of a series in the Prometheus text; "" if it is missing.
std::string Value(const std::string& metrics, const std::string& series) {
  for (const std::string& line : std::vector<std::string>(absl::StrSplit(metrics, '\n'))) {
    if (absl::StartsWith(line, series + " ")) return line.substr(series.size() + 1);
  }
  return "";
}

TEST(Agent, MetricsDistinguishFailedFromStoppedRanks) {
  ScriptedCoordinator coordinator;
  Node node(&coordinator);
  coordinator.AwaitRegister(1);
  coordinator.Send(Launch("fail"));
  coordinator.AwaitExit("fail-k3x9q2", 1, 0);
  coordinator.Send(Launch("stay"));
  coordinator.AwaitReady("stay-k3x9q2", 1, 0);
  coordinator.Send(Stop("stay-k3x9q2", 1, 0));
  coordinator.AwaitExit("stay-k3x9q2", 1, 0);
  const std::string metrics = Fetch(node.agent->metrics_endpoint());
  EXPECT_EQ(Value(metrics, "fsdpd_rank_failed{fsdpd_job=\"fail-k3x9q2\",rank=\"0\"}"), "1");
  EXPECT_EQ(Value(metrics, "fsdpd_rank_failed{fsdpd_job=\"stay-k3x9q2\",rank=\"0\"}"), "");
}

TEST(Agent, ExportsCheckpointMetricsOfRank0) {
  ScriptedCoordinator coordinator;
  Node node(&coordinator);
  coordinator.AwaitRegister(1);
  v1::CoordinatorMessage launch = Launch("stay");
  launch.mutable_launch()->mutable_spec()->mutable_checkpoint()->set_dir("/runs/7");
  coordinator.Send(launch);
  coordinator.Send(Launch("save"));
  coordinator.AwaitExit("save-k3x9q2", 1, 0);
  coordinator.AwaitReady("stay-k3x9q2", 1, 0);
  const std::string metrics = Fetch(node.agent->metrics_endpoint());
  const std::string saves = "{fsdpd_job=\"save-k3x9q2\",rank=\"0\"}";
  EXPECT_EQ(Value(metrics, "fsdpd_checkpoints_total" + saves), "1");
  EXPECT_EQ(Value(metrics, "fsdpd_checkpoint_failures_total" + saves), "1");
  EXPECT_EQ(Value(metrics, "fsdpd_checkpoint_last_step" + saves), "6");
  const std::string none_yet = "{fsdpd_job=\"stay-k3x9q2\",rank=\"0\"}";
  EXPECT_EQ(Value(metrics, "fsdpd_checkpoint_failures_total" + none_yet), "0");
}

TEST(Agent, ServesMetricsThatPromtoolAccepts) {
  ScriptedCoordinator coordinator;
  TempDir dir;
  {
    Node node(&coordinator);
    coordinator.AwaitRegister(1);
    coordinator.Send(Launch("train", 2, 2, 4));
    coordinator.AwaitExit("train-k3x9q2", 2, 0);
    coordinator.AwaitExit("train-k3x9q2", 2, 1);
    const std::string metrics = Fetch(node.agent->metrics_endpoint());
    const std::string rank = "{fsdpd_job=\"train-k3x9q2\",rank=\"1\"";
    EXPECT_EQ(Value(metrics, "fsdpd_steps_total" + rank + "}"), "3");
    EXPECT_EQ(Value(metrics, "fsdpd_step_seconds_total" + rank + "}"), "6");
    EXPECT_EQ(Value(metrics, "fsdpd_tokens_total" + rank + "}"), "750");
    EXPECT_EQ(Value(metrics, "fsdpd_comm_seconds_total" + rank + ",op=\"all_gather\"}"), "1.5");
    EXPECT_EQ(Value(metrics, "fsdpd_comm_exposed_seconds_total" + rank + ",op=\"all_gather\"}"), "0.375");
    EXPECT_EQ(Value(metrics, "fsdpd_comm_bytes_total" + rank + ",op=\"reduce_scatter\"}"), "0");
    EXPECT_EQ(Value(metrics, "fsdpd_memory_plan_bytes" + rank + ",component=\"optimizer\"}"), "400")
        << "what the coordinator planned";
    EXPECT_EQ(Value(metrics, "fsdpd_rank_up" + rank + "}"), "0");
    EXPECT_EQ(
        Value(metrics, "fsdpd_rank_info" + rank + ",attempt=\"2\",fsdpd_node=\"node-0\",device=\"cpu\"}"),
        "1");
    EXPECT_EQ(Value(metrics, "fsdpd_restarts_total{fsdpd_job=\"train-k3x9q2\"}"), "1");
    EXPECT_EQ(Value(metrics, "fsdpd_agent_connected"), "1");
    EXPECT_EQ(Value(metrics, "fsdpd_agent_slots"), "4");
    EXPECT_EQ(Value(metrics, "fsdpd_build_info{version=\"0.1.0\"}"), "1");
    std::ofstream(dir.File("metrics")) << metrics;
  }
  // After the agent has exited: a subreaper would reap the shell.
  const std::string check =
      "promtool check metrics < " + dir.File("metrics") + " > " + dir.File("verdict") + " 2>&1";
  const int verdict = system(check.c_str());
  std::ifstream said(dir.File("verdict"));
  EXPECT_EQ(verdict, 0) << std::string(std::istreambuf_iterator<char>(said), {});
}

TEST(Agent, ServesGpuMetrics) {
  ASSERT_NE(FakeNvml::Load("base/testing/libfake-nvidia-ml.so"), nullptr);
  ScriptedCoordinator coordinator;
  Node node(&coordinator);
  coordinator.AwaitRegister(1);
  EXPECT_EQ(Fetch(node.agent->metrics_endpoint()).find("fsdpd_gpu_"), std::string::npos);
  node.options.offer.device = v1::DEVICE_CUDA;
  node.Start();
  coordinator.AwaitRegister(2);
  coordinator.Send(Launch("train"));
  coordinator.AwaitExit("train-k3x9q2", 1, 0);
  const std::string power = "fsdpd_gpu_power_watts{fsdpd_node=\"node-0\",device=";
  const auto await = [&](const std::string& who) {
    while (Value(Fetch(node.agent->metrics_endpoint()), power + who) != "100") std::this_thread::yield();
  };
  await("\"cuda:0\",fsdpd_job=\"\",rank=\"\"}");
  coordinator.Send(Stop("train-k3x9q2", 1, 0));
  coordinator.AwaitStopped("train-k3x9q2", 1);  // The next reading shows that its memory is free.
  coordinator.Send(Launch("stay"));
  await("\"cuda:0\",fsdpd_job=\"stay-k3x9q2\",rank=\"0\"}");
  await("\"cuda:1\",fsdpd_job=\"\",rank=\"\"}");
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
