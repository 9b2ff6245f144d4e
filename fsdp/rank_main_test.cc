// Runs fsdpd-rank as real processes, with the test as their agent: it launches ranks, relays their store, and
// reads their reports.
#include <absl/strings/str_cat.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <google/protobuf/util/json_util.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "base/check.h"
#include "base/rank/exit_code.h"
#include "base/rank/frame.h"
#include "base/temp_dir.h"
#include "base/version.h"
#include "fsdp/checkpoint/job/job_directory.h"
#include "proto/fsdpd/v1/rank.pb.h"

namespace fsdpd {
namespace {

using ::testing::HasSubstr;

constexpr char kRank[] = "fsdp/fsdpd-rank";

struct Exit {
  int code = -1;
  std::string output;  // stdout and stderr.
};

// A child process with `fd` as descriptor 3 (-1: none), whose output is captured through a pipe.
class Child {
 public:
  Child(std::vector<std::string> args, int fd) {
    int out[2];
    FSDPD_CHECK(pipe2(out, O_CLOEXEC) == 0);
    pid_ = fork();  // No threads exist yet.
    if (pid_ == 0) {
      dup2(out[1], 1);
      dup2(out[1], 2);
      if (fd >= 0) {
        dup2(fd, 3);
      } else {
        close(3);
      }
      std::vector<char*> argv{const_cast<char*>(kRank)};
      for (std::string& arg : args) argv.push_back(arg.data());
      argv.push_back(nullptr);
      execv(kRank, argv.data());
      _exit(127);
    }
    close(out[1]);
    output_ = out[0];
  }

  void Signal(int signal) { kill(pid_, signal); }

  // Limits its address space to the size at launch plus `bytes`.
  void AllowMoreMemory(rlim_t bytes) {
    siginfo_t ended{};
    while (StatusNumber("Threads:") < 2) {  // Including the one that waits for SIGTERM.
      FSDPD_CHECK(waitid(P_PID, static_cast<id_t>(pid_), &ended, WEXITED | WNOHANG | WNOWAIT) == 0);
      FSDPD_CHECK(ended.si_pid == 0);
      sched_yield();
    }
    const rlimit limit{(StatusNumber("VmSize:") << 10) + bytes, RLIM_INFINITY};
    FSDPD_CHECK(prlimit(pid_, RLIMIT_AS, &limit, nullptr) == 0);
  }

  Exit Wait() {
    Exit exit;
    char buffer[4096];
    for (ssize_t n; (n = read(output_, buffer, sizeof(buffer))) > 0;) exit.output.append(buffer, n);
    close(output_);
    int status = 0;
    waitpid(pid_, &status, 0);
    exit.code = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
    return exit;
  }

 private:
  // A field such as "VmSize:  123 kB" of /proc/PID/status; 0 if absent.
  rlim_t StatusNumber(const std::string& name) const {
    std::ifstream file(absl::StrCat("/proc/", pid_, "/status"));
    rlim_t number = 0;
    for (std::string word; file >> word;) {
      if (word == name) file >> number;
    }
    return number;
  }

  pid_t pid_;
  int output_;
};

v1::JobSpec TinyJob(int world, int steps) {
  v1::JobSpec job;
  const auto parsed = google::protobuf::util::JsonStringToMessage(
      R"({"name": "test",
          "model": {"llama": {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 32, "layers": 2, "heads": 2}},
          "data": {"synthetic": {}, "sequence_length": 8},
          "train": {"micro_batch": 1, "global_batch": 4},
          "resources": {"device": "DEVICE_CPU"}})",
      &job);
  FSDPD_CHECK(parsed.ok());
  job.mutable_train()->set_steps(steps);
  job.mutable_resources()->set_nodes(1);
  job.mutable_resources()->set_ranks_per_node(world);
  return job;
}

// The agent's side of a job: one socket and one child per rank.
class Job {
 public:
  explicit Job(int world) : reports_(world), ends_(world), started_(world) {
    for (int rank = 0; rank < world; ++rank) {
      int ends[2];
      FSDPD_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
      sockets_.push_back(ends[0]);
      children_.push_back(std::make_unique<Child>(std::vector<std::string>{}, ends[1]));
      close(ends[1]);
    }
  }
  ~Job() {
    for (int socket : sockets_) shutdown(socket, SHUT_RDWR);
    for (std::thread& reader : readers_) reader.join();
    for (int socket : sockets_) close(socket);
  }

  void Launch(const v1::JobSpec& spec) {
    for (size_t rank = 0; rank < sockets_.size(); ++rank) {
      v1::AgentToRank message;
      message.mutable_launch()->set_job_id("test-abc123");
      message.mutable_launch()->set_attempt(1);
      *message.mutable_launch()->mutable_spec() = spec;
      message.mutable_launch()->set_rank(static_cast<int>(rank));
      message.mutable_launch()->set_world_size(static_cast<int>(sockets_.size()));
      message.mutable_launch()->set_bind_address("127.0.0.1");
      FSDPD_CHECK_OK(WriteFrame(sockets_[rank], message));
    }
    for (size_t rank = 0; rank < sockets_.size(); ++rank) {
      readers_.emplace_back([this, rank] { ReadLoop(static_cast<int>(rank)); });
    }
  }

  // Blocks until rank 0 has reported its first step, or ended.
  void AwaitFirstStep() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return !reports_[0].empty() || ended_ > 0; });
  }

  void HangUp(int rank) { shutdown(sockets_[rank], SHUT_RDWR); }
  void TellThatItFailed(int rank, int failed) {
    v1::AgentToRank message;
    message.mutable_peer_failed()->set_rank(failed);
    FSDPD_CHECK_OK(WriteFrame(sockets_[rank], message));
  }
  void TellToLeave(int rank, int64_t within_ms) {
    v1::AgentToRank message;
    message.mutable_leave()->set_within_ms(within_ms);
    FSDPD_CHECK_OK(WriteFrame(sockets_[rank], message));
  }
  Child& child(int rank) { return *children_[rank]; }

  // Call it after the children have ended and Drain() has returned.
  void Drain() {
    for (std::thread& reader : readers_) reader.join();
    readers_.clear();
  }
  const std::vector<v1::StepReport>& reports(int rank) const { return reports_[rank]; }
  const std::string& error(int rank) const { return ends_[rank].error(); }
  const v1::ErrorClass& fault(int rank) const { return ends_[rank].error_class(); }
  const v1::RankStarted& started(int rank) const { return started_[rank]; }

 private:
  void ReadLoop(int rank) {
    v1::RankToAgent message;
    while (ReadFrame(sockets_[rank], &message).ok()) {
      std::lock_guard<std::mutex> lock(mutex_);
      if (message.has_store_set()) {
        values_[message.store_set().key()] = message.store_set().value();
        AnswerWaiting();
      } else if (message.has_store_get()) {
        waiting_.emplace_back(rank, message.store_get());
        AnswerWaiting();
      } else if (message.has_started()) {
        started_[rank] = message.started();
      } else if (message.has_step()) {
        reports_[rank].push_back(message.step());
        changed_.notify_all();
      } else if (message.has_finished()) {
        ends_[rank] = message.finished();
      }
    }
    std::lock_guard<std::mutex> lock(mutex_);
    ++ended_;
    changed_.notify_all();
  }

  void AnswerWaiting() {
    for (auto it = waiting_.begin(); it != waiting_.end();) {
      const auto value = values_.find(it->second.key());
      if (value == values_.end()) {
        ++it;
        continue;
      }
      v1::AgentToRank answer;
      answer.mutable_store_value()->set_request(it->second.request());
      answer.mutable_store_value()->set_value(value->second);
      WriteFrame(sockets_[it->first], answer).IgnoreError();  // The rank may have died meanwhile.
      it = waiting_.erase(it);
    }
  }

  std::vector<int> sockets_;
  std::vector<std::unique_ptr<Child>> children_;
  std::vector<std::thread> readers_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
  std::vector<std::pair<int, v1::StoreGet>> waiting_;
  std::vector<std::vector<v1::StepReport>> reports_;
  std::vector<v1::RankFinished> ends_;
  std::vector<v1::RankStarted> started_;
  int ended_ = 0;
};

TEST(RankMain, PrintsVersion) {
  const Exit exit = Child({"--version"}, -1).Wait();
  EXPECT_EQ(exit.code, 0);
  EXPECT_EQ(exit.output, std::string("fsdpd-rank ") + kVersion + "\n");
}

TEST(RankMain, DescribesPlugin) {
  const Exit exit =
      Child({"--describe-plugin", "fsdp/model/testing/test_plugin.so", "--args", "4"}, -1).Wait();
  EXPECT_EQ(exit.code, 0);
  EXPECT_THAT(exit.output, HasSubstr(R"("name": "embedding")"));
  const Exit missing = Child({"--describe-plugin", "no.so"}, -1).Wait();
  EXPECT_EQ(missing.code, 1);
  EXPECT_THAT(missing.output, HasSubstr("plug-in ./no.so: "));
}

TEST(RankMain, ProfilesDevice) {
  const Exit exit = Child({"--profile-device", "cpu", "--ranks", "1"}, -1).Wait();
  EXPECT_EQ(exit.code, 0);
  EXPECT_THAT(exit.output, HasSubstr("{\n  \"name\": \"measured cpu x1\",\n"));
  EXPECT_EQ(Child({"--profile-device", "abacus"}, -1).Wait().code, 2);
}

TEST(RankMain, ExplainsStartWithoutAgent) {
  const Exit exit = Child({}, -1).Wait();
  EXPECT_EQ(exit.code, 2);
  EXPECT_THAT(exit.output, HasSubstr("started by fsdpd-agent"));
}

TEST(RankMain, RejectsDescriptor3ThatIsNotASocket) {
  const int file = open("/dev/null", O_RDWR | O_CLOEXEC);
  EXPECT_EQ(Child({}, file).Wait().code, 2);
  close(file);
}

TEST(RankMain, RanksReportEqualLosses) {
  std::vector<double> own_process;
  for (int world : {1, 2}) {
    Job job(world);
    job.Launch(TinyJob(world, 3));
    for (int rank = 0; rank < world; ++rank) {
      const Exit exit = job.child(rank).Wait();
      EXPECT_EQ(exit.code, 0) << exit.output;
      EXPECT_THAT(exit.output, HasSubstr("optim_grads_params"));  // The configuration table.
      EXPECT_THAT(exit.output, HasSubstr(" I step     3/3"));     // Without the rank, which readers add.
    }
    job.Drain();
    for (int rank = 0; rank < world; ++rank) {
      ASSERT_EQ(job.reports(rank).size(), 3u);
      EXPECT_EQ(job.error(rank), "");
      EXPECT_GT(job.started(rank).memory_plan().peak_bytes(), 0);
      EXPECT_GT(job.reports(rank)[2].memory().device_mallocs(), 0);
      for (int s = 0; s < 3; ++s) EXPECT_EQ(job.reports(rank)[s].loss(), job.reports(0)[s].loss());
    }
    for (int s = 0; s < 3; ++s) {
      if (world == 1) own_process.push_back(job.reports(0)[s].loss());
      EXPECT_NEAR(job.reports(0)[s].loss(), own_process[s], 1e-5 * own_process[s]);
    }
  }
}

TEST(RankMain, RejectedSpecIsReportedAndLogged) {
  Job job(1);
  v1::JobSpec spec = TinyJob(1, 3);
  spec.mutable_model()->mutable_llama()->set_heads(3);  // Does not divide 16.
  job.Launch(spec);
  const Exit exit = job.child(0).Wait();
  EXPECT_EQ(exit.code, 1);
  job.Drain();
  EXPECT_THAT(job.error(0), HasSubstr("heads"));
  EXPECT_THAT(exit.output, HasSubstr("heads"));
}

TEST(RankMain, RejectsWorldSizeMismatch) {
  Job job(1);
  job.Launch(TinyJob(2, 3));
  EXPECT_EQ(job.child(0).Wait().code, 1);
  job.Drain();
  EXPECT_THAT(job.error(0), HasSubstr("rank is 0 of 1, but the spec has 2 ranks"));
}

// Happens before it can read its agent's channel, outside of any handler.
TEST(RankMain, ThreadStackLimitIsReported) {
  Job job(1);
  job.child(0).AllowMoreMemory(1 << 20);  // The stack of a thread takes 8 MiB.
  job.Launch(TinyJob(1, 3));
  const Exit exit = job.child(0).Wait();
  EXPECT_EQ(exit.code, 1) << exit.output;
  job.Drain();
  for (const std::string& told : {job.error(0), exit.output}) {
    EXPECT_THAT(
        told,
        HasSubstr("out of host memory for a thread's stack of 8.00 MiB (ulimit -s): this process may map "));
  }
  EXPECT_EQ(job.fault(0).kind(), v1::ErrorClass::KIND_MEMORY);
}

TEST(RankMain, MemoryLimitIsReported) {
  Job job(1);
  v1::JobSpec spec = TinyJob(1, 3);
  spec.mutable_model()->mutable_llama()->set_vocab_size(8'000'000);  // One matrix takes 512 MB of fp32.
  job.child(0).AllowMoreMemory(300 << 20);
  job.Launch(spec);
  const Exit exit = job.child(0).Wait();
  EXPECT_EQ(exit.code, 1) << exit.output;
  job.Drain();
  EXPECT_THAT(job.error(0), HasSubstr("out of host memory"));
  EXPECT_THAT(job.error(0), HasSubstr("this process may map "));
  EXPECT_EQ(job.fault(0).kind(), v1::ErrorClass::KIND_MEMORY);
}

TEST(RankMain, SigtermStopsTrainingRankWith143) {
  Job job(1);
  job.Launch(TinyJob(1, 10'000'000));
  job.AwaitFirstStep();
  job.child(0).Signal(SIGTERM);
  const Exit exit = job.child(0).Wait();
  EXPECT_EQ(exit.code, 143) << exit.output;
  job.Drain();
  EXPECT_THAT(job.error(0), HasSubstr("stopped at step"));
}

// One of two ranks is ordered to leave: both save, and only that one leaves, after which its peer fails.
TEST(RankMain, LeaveOrderSavesAndExitsWith143) {
  const TempDir dir;
  Job job(2);
  v1::JobSpec spec = TinyJob(2, 10'000'000);
  spec.mutable_checkpoint()->set_dir(dir.path());
  job.Launch(spec);
  job.AwaitFirstStep();
  job.TellToLeave(1, 600'000);
  const Exit exit = job.child(1).Wait();
  EXPECT_EQ(exit.code, 143) << exit.output;
  EXPECT_THAT(exit.output, HasSubstr("within_ms=600000"));
  EXPECT_EQ(job.child(0).Wait().code, kPeerFailedExitCode);
  job.Drain();
  EXPECT_THAT(job.error(1), HasSubstr(", which is saved"));
  const auto found = ListCheckpoints(dir.path());
  ASSERT_TRUE(found.ok() && found->size() == 1) << found.status();
  EXPECT_TRUE(found->front().committed);
  EXPECT_THAT(job.error(1), HasSubstr(absl::StrCat("left after step ", found->front().step, ", ")));
}

TEST(RankMain, LeaveOrderBeforeTrainingExitsImmediately) {
  Job job(2);
  job.child(1).Signal(SIGSTOP);  // The other waits for it.
  job.Launch(TinyJob(2, 10));
  job.TellToLeave(0, 600'000);
  EXPECT_EQ(job.child(0).Wait().code, 143);
  job.child(1).Signal(SIGKILL);
  job.child(1).Wait();
}

TEST(RankMain, LostAgentEndsRankImmediately) {
  Job job(1);
  job.Launch(TinyJob(1, 10'000'000));
  job.AwaitFirstStep();
  job.HangUp(0);
  const Exit exit = job.child(0).Wait();
  EXPECT_EQ(exit.code, 1);
}

TEST(RankMain, KilledPeerFailsRankWithOperation) {
  Job job(2);
  job.Launch(TinyJob(2, 10'000'000));
  job.AwaitFirstStep();
  job.child(1).Signal(SIGKILL);
  EXPECT_EQ(job.child(1).Wait().code, -SIGKILL);
  const Exit exit = job.child(0).Wait();
  EXPECT_EQ(exit.code, kPeerFailedExitCode) << exit.output;
  job.Drain();
  EXPECT_THAT(job.error(0), HasSubstr("step "));
}

// As when one node receives a cancel before the other: both were stopped, neither failed.
TEST(RankMain, StoppedPeerIsNotAFailure) {
  Job job(2);
  job.Launch(TinyJob(2, 10'000'000));
  job.AwaitFirstStep();
  job.child(1).Signal(SIGTERM);
  EXPECT_EQ(job.child(1).Wait().code, kStoppedExitCode);
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  job.child(0).Signal(SIGTERM);
  const Exit exit = job.child(0).Wait();
  EXPECT_EQ(exit.code, kStoppedExitCode) << exit.output;
}

TEST(RankMain, SigtermEndsRankBlockedByHangingPeer) {
  Job job(2);
  job.Launch(TinyJob(2, 10'000'000));
  job.AwaitFirstStep();
  job.child(1).Signal(SIGSTOP);
  job.child(0).Signal(SIGTERM);
  const Exit exit = job.child(0).Wait();  // Within 500 ms by contract.
  EXPECT_EQ(exit.code, 143) << exit.output;
  job.child(1).Signal(SIGKILL);
  job.child(1).Wait();
}

// Like NCCL on a single host: the peer is gone, and no transport reports it.
TEST(RankMain, FailedPeerReportEndsBlockedRank) {
  Job job(2);
  job.Launch(TinyJob(2, 10'000'000));
  job.AwaitFirstStep();
  job.child(1).Signal(SIGSTOP);
  job.TellThatItFailed(0, /*failed=*/1);
  const Exit exit = job.child(0).Wait();
  EXPECT_EQ(exit.code, 3) << exit.output;
  EXPECT_THAT(exit.output, HasSubstr("rank 1 has failed"));
  job.child(1).Signal(SIGKILL);
  job.child(1).Wait();
}

}  // namespace
}  // namespace fsdpd
