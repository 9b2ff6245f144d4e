#include "fsdp/comm/tcp_communicator.h"

#include <absl/strings/match.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_replace.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "base/check.h"
#include "base/limits.h"
#include "base/temp_dir.h"
#include "fsdp/comm/testing/communicator_suite.h"

namespace fsdpd {
namespace {

Members MakeTcpGroup(int size) {
  LocalStore store;
  Members group(size);
  OnEveryRank(size, [&](int rank) {
    auto made = MakeTcpCommunicator(Options(rank, size), &store);
    FSDPD_CHECK_OK(made.status());
    group[rank] = std::move(*made);
  });
  return group;
}

INSTANTIATE_TEST_SUITE_P(Cpu, CommunicatorSuite,
                         testing::Combine(testing::Values(Transport{"Tcp", MakeTcpGroup}),
                                          testing::Values(1, 2, 3, 4, 8)),
                         NameOfCase);

TEST(TcpCommunicator, NamesAMissingRank) {
  LocalStore store;
  CommunicatorOptions options = Options(0, 2);
  options.rendezvous_timeout = absl::Milliseconds(100);
  const auto made = MakeTcpCommunicator(options, &store);
  EXPECT_EQ(made.status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(absl::StrContains(made.status().message(), "test/")) << made.status();
}

TEST(TcpCommunicator, RefusesAForeignAddress) {
  LocalStore store;
  CommunicatorOptions options = Options(0, 1);
  options.bind_address = "192.0.2.1";  // Reserved for documentation.
  const auto made = MakeTcpCommunicator(options, &store);
  EXPECT_EQ(made.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(absl::StrContains(made.status().message(), "192.0.2.1")) << made.status();
}

TEST(TcpCommunicator, SumsInSeveralParts) {
  constexpr int kRanks = 3;
  constexpr int64_t kCount = kMaxTcpReceivedBytes / sizeof(float) / kRanks + 1;
  const std::vector<float> sums = SumOfValues(kRanks, 0, kRanks * kCount);
  LocalStore store;
  OnEveryRank(kRanks, [&](int rank) {
    auto made = MakeTcpCommunicator(Options(rank, kRanks), &store);
    ASSERT_EQ(made.status(), absl::OkStatus());
    std::vector<float> in = Values(rank, kRanks * kCount), whole = in;
    float* const own = in.data() + rank * kCount;
    ASSERT_EQ((*made)->ReduceScatter(in.data(), nullptr, own, kCount, DType::kFp32), absl::OkStatus());
    EXPECT_TRUE(std::equal(own, own + kCount, sums.begin() + rank * kCount)) << "rank " << rank;
    const int64_t odd = kRanks * kCount - 1;
    ASSERT_EQ((*made)->AllReduce(whole.data(), odd), absl::OkStatus());
    EXPECT_TRUE(std::equal(whole.begin(), whole.end() - 1, sums.begin())) << "rank " << rank;
    EXPECT_EQ((*made)->Barrier(), absl::OkStatus());
  });
}

TEST(TcpCommunicator, GroupsShareAStore) {
  LocalStore store;
  OnEveryRank(2, [&](int rank) {
    for (const char* name : {"gather", "reduce"}) {
      CommunicatorOptions options = Options(rank, 2);
      options.name = name;
      auto made = MakeTcpCommunicator(options, &store);
      ASSERT_EQ(made.status(), absl::OkStatus());
      float value = rank + 1;
      ASSERT_EQ((*made)->AllReduce(&value, 1), absl::OkStatus());
      EXPECT_EQ(value, 3);
      ASSERT_EQ((*made)->Barrier(), absl::OkStatus());
    }
  });
}

// Writing to a peer that is closing must not raise SIGPIPE.
TEST(TcpCommunicator, SurvivesPeersThatLeaveDuringWrites) {
  for (int round = 0; round < 10; ++round) {
    Members group = MakeTcpGroup(3);
    OnEveryRank(3, [&](int rank) {
      std::vector<float> buffer(3 * 50000, 1);
      if (rank == 1) group[rank].reset();
      absl::Status status;
      while (rank != 1 && status.ok()) status = group[rank]->AllGather(buffer.data(), 50000, DType::kFp32);
      EXPECT_EQ(status.code(), rank == 1 ? absl::StatusCode::kOk : absl::StatusCode::kUnavailable);
    });
  }
}

// A store for ranks that are processes: one file per key.
class FileStore : public Store {
 public:
  explicit FileStore(std::string directory) : directory_(std::move(directory)) {}

  absl::Status Set(const std::string& key, const std::string& value) override {
    const std::string path = PathOf(key);
    const std::string unfinished = absl::StrFormat("%s.%d", path, getpid());
    std::ofstream(unfinished, std::ios::binary) << value;
    FSDPD_CHECK(std::rename(unfinished.c_str(), path.c_str()) == 0);
    return absl::OkStatus();
  }

  absl::StatusOr<std::string> Get(const std::string& key, absl::Duration timeout) override {
    const auto deadline = std::chrono::steady_clock::now() + absl::ToChronoMilliseconds(timeout);
    while (true) {
      std::ifstream file(PathOf(key), std::ios::binary);
      if (file) return std::string(std::istreambuf_iterator<char>(file), {});
      if (std::chrono::steady_clock::now() > deadline) return absl::DeadlineExceededError(key);
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  }

 private:
  std::string PathOf(const std::string& key) const {
    return directory_ + "/" + absl::StrReplaceAll(key, {{"/", "_"}});
  }
  const std::string directory_;
};

constexpr int kProcesses = 3;

// Runs this binary again as another rank: it executes the one test below.
pid_t SpawnRank(int rank, const std::string& directory) {
  const std::string rank_variable = absl::StrFormat("TEST_RANK=%d", rank);
  const std::string directory_variable = "TEST_FOLDER=" + directory;
  std::vector<char*> environment = {const_cast<char*>(rank_variable.c_str()),
                                    const_cast<char*>(directory_variable.c_str())};
  for (char** variable = environ; *variable != nullptr; ++variable) {
    // The child must not use the parent's report and shard.
    if (!absl::StartsWith(*variable, "GTEST_") && !absl::StartsWith(*variable, "XML_OUTPUT")) {
      environment.push_back(*variable);
    }
  }
  environment.push_back(nullptr);
  const char* arguments[] = {"rank", "--gtest_filter=*DISABLED_RankOfAnotherProcess",
                             "--gtest_also_run_disabled_tests", nullptr};
  pid_t pid = 0;
  FSDPD_CHECK(posix_spawn(&pid, "/proc/self/exe", nullptr, nullptr, const_cast<char**>(arguments),
                          environment.data()) == 0);
  return pid;
}

TEST(TcpProcesses, DISABLED_RankOfAnotherProcess) {
  const int rank = std::atoi(std::getenv("TEST_RANK"));
  FileStore store(std::getenv("TEST_FOLDER"));
  auto made = MakeTcpCommunicator(Options(rank, kProcesses), &store);
  ASSERT_EQ(made.status(), absl::OkStatus());
  ASSERT_EQ((*made)->Barrier(), absl::OkStatus());
  if (rank == 1) {
    while (true) pause();  // Until it is killed.
  }
  EXPECT_EQ((*made)->Barrier().code(), absl::StatusCode::kUnavailable);
}

TEST(TcpProcesses, KilledPeerFailsAllOthers) {
  TempDir directory;
  const pid_t killed = SpawnRank(1, directory.path());
  const pid_t survivor = SpawnRank(2, directory.path());
  FileStore store(directory.path());
  auto made = MakeTcpCommunicator(Options(0, kProcesses), &store);
  ASSERT_EQ(made.status(), absl::OkStatus());
  ASSERT_EQ((*made)->Barrier(), absl::OkStatus());
  kill(killed, SIGKILL);
  // Without the timeout: the default is half an hour, the test's own limit one minute.
  EXPECT_EQ((*made)->Barrier().code(), absl::StatusCode::kUnavailable);
  int status = 0;
  ASSERT_EQ(waitpid(survivor, &status, 0), survivor);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  ASSERT_EQ(waitpid(killed, &status, 0), killed);
  EXPECT_TRUE(WIFSIGNALED(status));
}

}  // namespace
}  // namespace fsdpd
