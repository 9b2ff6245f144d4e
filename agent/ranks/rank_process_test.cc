#include "agent/ranks/rank_process.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <fstream>
#include <iterator>
#include <map>
#include <set>

#include "agent/ranks/process_tree.h"
#include "base/rank/flight_recorder.h"
#include "base/rank/frame.h"
#include "base/temp_dir.h"
#include "proto/fsdpd/v1/rank.pb.h"

namespace fsdpd {
namespace {

class RankProcessTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(BecomeSubreaper().ok());
    log_ = UniqueFd(open(dir_.File("log").c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  }

  absl::StatusOr<std::unique_ptr<RankProcess>> Spawn(const std::string& binary) {
    RankCommand command;
    command.binary = binary;
    command.mark = "job/1/0";
    command.defaults = {{"OMP_NUM_THREADS", "1"}};
    command.variables = variables_;
    command.log_fd = log_.get();
    command.flight_fd = flight_.get();
    return RankProcess::Spawn(command);
  }

  // A fake rank with this behavior, up to its first frame.
  std::unique_ptr<RankProcess> Start(const std::string& behavior, UniqueFd* socket) {
    std::unique_ptr<RankProcess> process = *Spawn("agent/testing/fake_rank");
    *socket = process->TakeSocket();
    v1::AgentToRank message;
    message.mutable_launch()->mutable_spec()->set_name(behavior);
    EXPECT_TRUE(WriteFrame(socket->get(), message).ok());
    v1::RankToAgent first;
    EXPECT_TRUE(ReadFrame(socket->get(), &first).ok());
    return process;
  }

  ProcessEnd AwaitEnd(const RankProcess& process) {
    pollfd ended = {process.pidfd(), POLLIN, 0};
    EXPECT_EQ(poll(&ended, 1, /*timeout_ms=*/10000), 1);
    return process.Exited().value();
  }

  std::string Log() {
    std::ifstream file(dir_.File("log"));
    return std::string(std::istreambuf_iterator<char>(file), {});
  }

  static std::string CommandLineOf(pid_t pid) {
    std::ifstream file("/proc/" + std::to_string(pid) + "/cmdline");
    return std::string(std::istreambuf_iterator<char>(file), {});
  }

  // Environment of the rank, "NAME=VALUE" each.
  std::multiset<std::string> EnvironmentOf(pid_t pid) {
    std::ifstream file("/proc/" + std::to_string(pid) + "/environ");
    std::multiset<std::string> variables;
    for (std::string variable; std::getline(file, variable, '\0');) variables.insert(variable);
    return variables;
  }

  std::map<std::string, std::string> variables_;
  TempDir dir_;
  UniqueFd log_;
  UniqueFd flight_;
};

TEST_F(RankProcessTest, StartsInItsOwnSessionWithNoOtherDescriptors) {
  const UniqueFd leak(open("/dev/null", O_RDONLY));  // Without O_CLOEXEC, like some libraries.
  UniqueFd socket;
  setenv("OMP_NUM_THREADS", "5", 1);
  const auto process = Start("environment", &socket);
  EXPECT_EQ(AwaitEnd(*process).exit_code, 0);
  EXPECT_EQ(Log(), "omp=5\ngroup=1 session=1\nstdin=/dev/null\nhighest_fd=3\nbind= device=0\n");
  unsetenv("OMP_NUM_THREADS");
  EXPECT_TRUE(process->TreeGone());
}

TEST_F(RankProcessTest, PassesOnlyTheFlightRecorder) {
  const UniqueFd leak(open("/dev/null", O_RDONLY));
  flight_ = UniqueFd(*MakeFlightRecorder());
  UniqueFd socket;
  const auto blocked = Start("blocks-in-reduce", &socket);
  EXPECT_THAT(*DescribeLanePositions(flight_.get()), testing::HasSubstr("reduce in Reduce layer.2 mb 0"));
  EXPECT_FALSE(blocked->Stopped());
  UniqueFd other;
  const auto process = Start("environment", &other);
  EXPECT_EQ(AwaitEnd(*process).exit_code, 0);
  EXPECT_THAT(Log(), testing::HasSubstr("highest_fd=4\n"));
}

TEST_F(RankProcessTest, DropsCudaDeviceMaxConnections) {
  const std::string script = dir_.File("rank");
  std::ofstream(script) << "#!/bin/sh\necho connections=$CUDA_DEVICE_MAX_CONNECTIONS\n";
  chmod(script.c_str(), 0755);
  for (const char* value : {"1", "32"}) {
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", value, 1);
    const auto process = Spawn(script);
    ASSERT_TRUE(process.ok()) << process.status();
    EXPECT_EQ(AwaitEnd(**process).exit_code, 0);
  }
  unsetenv("CUDA_DEVICE_MAX_CONNECTIONS");
  EXPECT_EQ(Log(), "connections=\nconnections=32\n");
}

TEST_F(RankProcessTest, SetsDefaultsThatTheAgentDoesNotSet) {
  unsetenv("OMP_NUM_THREADS");
  UniqueFd socket;
  const auto process = Start("environment", &socket);
  AwaitEnd(*process);
  EXPECT_EQ(Log().substr(0, 6), "omp=1\n");
}

TEST_F(RankProcessTest, ReportsMissingOrInvalidBinary) {
  EXPECT_EQ(Spawn(dir_.File("missing")).status().code(), absl::StatusCode::kNotFound);
  std::ofstream(dir_.File("text")) << "no program";
  EXPECT_EQ(Spawn(dir_.File("text")).status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(RankProcessTest, RankExitsWhenItsAgentDies) {
  UniqueFd socket;
  const auto process = Start("stay", &socket);
  EXPECT_FALSE(process->Exited().has_value());
  socket.Reset();
  EXPECT_EQ(AwaitEnd(*process).exit_code, 9);
}

TEST_F(RankProcessTest, TreeIsGoneAfterAGrandchildInAnotherSession) {
  UniqueFd socket;
  const auto process = Start("orphans", &socket);
  const pid_t rank = process->pid();
  ASSERT_EQ(kill(rank, SIGKILL), 0);
  EXPECT_EQ(AwaitEnd(*process).signal, SIGKILL);
  EXPECT_FALSE(process->TreeGone());
  const auto left = ReadTree(rank, "job/1/0", {});
  ASSERT_TRUE(left.ok());
  int alive = 0, elsewhere = 0;
  for (const ProcessFacts& p : *left) {
    alive += p.alive() ? 1 : 0;
    elsewhere += p.alive() && p.session != rank ? 1 : 0;
  }
  EXPECT_EQ(alive, 2);
  EXPECT_EQ(elsewhere, 1);
  while (!process->TreeGone()) process->SignalTree(SIGKILL);
  EXPECT_EQ(kill(-rank, 0), -1);
  EXPECT_EQ(errno, ESRCH);
  for (const ProcessFacts& p : *left) EXPECT_EQ(kill(p.pid, 0), -1) << p.pid;
}

TEST_F(RankProcessTest, ReapsOrphansButNotDeadRanks) {
  UniqueFd socket;
  const auto process = Start("environment", &socket);
  AwaitEnd(*process);
  ReapOrphans({process->pid()});
  EXPECT_TRUE(process->Exited().has_value());
  EXPECT_TRUE(process->TreeGone());
  // A child without a parent that waits for it.
  const pid_t child = fork();
  if (child == 0) _exit(0);
  siginfo_t info = {};
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT), 0);
  ReapOrphans({});
  EXPECT_EQ(kill(child, 0), -1);
}

TEST_F(RankProcessTest, JobVariablesOverrideAllButTheMark) {
  setenv("NCCL_DEBUG", "of the agent", 1);
  variables_ = {{"NCCL_DEBUG", "INFO"}, {"OMP_NUM_THREADS", "4"}, {"EMPTY", ""}, {"FSDPD_RANK", "other/1/0"}};
  UniqueFd socket;
  const std::unique_ptr<RankProcess> process = Start("stay", &socket);
  unsetenv("NCCL_DEBUG");
  EXPECT_EQ(CommandLineOf(process->pid()), std::string("fsdpd-rank job/1/0\0", 19)) << "what ps shows";
  const std::multiset<std::string> variables = EnvironmentOf(process->pid());
  for (const char* variable : {"NCCL_DEBUG=INFO", "OMP_NUM_THREADS=4", "EMPTY=", "FSDPD_RANK=job/1/0"})
    EXPECT_EQ(variables.count(variable), 1u) << variable;
  EXPECT_EQ(variables.count("NCCL_DEBUG=of the agent"), 0u);
  EXPECT_EQ(variables.count("FSDPD_RANK=other/1/0"), 0u);
}

}  // namespace
}  // namespace fsdpd
