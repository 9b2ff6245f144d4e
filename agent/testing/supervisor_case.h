// Fixture for tests of the supervisor: fake ranks as real processes, a fake clock, and events of the
// supervisor as text.
#pragma once

#include <absl/strings/str_cat.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "agent/logs/log_keeper.h"
#include "agent/ranks/process_tree.h"
#include "agent/ranks/rank_supervisor.h"
#include "base/clock.h"
#include "base/temp_dir.h"

namespace fsdpd {

// Position of the rank with behavior "blocks-in-reduce".
constexpr char kInReduce[] = "step 12: compute after Backward layer.2 mb 0, reduce in Reduce layer.2 mb 0";

constexpr auto kPatience = std::chrono::seconds(10);

// Records events as text and lets the test wait for them.
class Recorder : public RankEvents {
 public:
  void RankLaunched(const RankId& id, const v1::RankLaunch& launch, const v1::MemoryPlan&) override {
    Add(absl::StrCat("launched ", id.rank, " device ", launch.device()));
    if (!launch.package_dir().empty()) Add(absl::StrCat("unpacks in ", launch.package_dir()));
  }
  void LaunchAcknowledged(const RankId& first) override { Add(absl::StrCat("acknowledged ", first.rank)); }
  void RankReady(const RankId& id, const v1::RankStarted&) override { Add(absl::StrCat("ready ", id.rank)); }
  void RankStepped(const RankId&, int, const v1::StepReport&) override {}
  void RankTimeline(const RankId& id, const v1::StepTimeline& timeline) override {
    Add(absl::StrCat("timeline ", id.rank, " step ", timeline.step()));
  }
  void CheckpointSaved(const RankId&, const v1::SavedCheckpoint&) override {}
  void RankTraced(const RankId& id, const v1::StepTraceResult& traced) override {
    Add(absl::StrCat("traced ", id.rank, " step ", traced.step(), " in ", traced.path()));
  }
  void RankMeasured(const RankId& id, const v1::PreflightDevice&) override {
    Add(absl::StrCat("measured ", id.rank));
  }
  void RankBlockedIn(const RankId& id, const std::string& where) override {
    Add(absl::StrCat("stood ", id.rank, ": ", where));
  }
  void RankStalled(const RankId& id, const v1::RankNoProgress& no_progress) override {
    Add(no_progress.no_progress_ms() == 0
            ? absl::StrCat("moves ", id.rank)
            : absl::StrCat("still ", id.rank, ": ", v1::ProcessState_Name(no_progress.process()), "; ",
                           no_progress.position()));
    if (!no_progress.evidence().empty()) Add(absl::StrCat("evidence ", id.rank));
  }
  void AttemptHung(const AttemptId& id) override { Add(absl::StrCat("hung ", id.attempt)); }
  void RankExited(const RankId& id, const v1::RankExit& exit) override {
    MutexLock lock(&mutex_);
    exits_[id.rank] = exit;
    happened_.push_back(absl::StrCat("exit ", id.rank));
    changed_.SignalAll();
  }
  void AttemptGone(const AttemptId&, bool stopped, const v1::FreedMemory& memory) override {
    for (const v1::FreedMemory::Held& held : memory.held())
      Add(absl::StrCat("held ", held.device(), " ", held.bytes()));
    if (memory.gpus() > 0) Add(absl::StrCat("freed ", memory.gpus()));
    Add(stopped ? "stopped" : "gone");
  }
  void StoreSet(const AttemptId&, const v1::StoreSet&) override {}
  void StoreGet(const AttemptId&, const std::string&, int64_t) override {}

  void Await(const std::string& what) {
    MutexLock lock(&mutex_);
    while (std::count(happened_.begin(), happened_.end(), what) == 0) {
      if (changed_.WaitFor(&mutex_, kPatience)) continue;
      ADD_FAILURE() << "did not happen: " << what;
      return;
    }
  }
  v1::RankExit AwaitExit(int rank) {
    Await(absl::StrCat("exit ", rank));
    MutexLock lock(&mutex_);
    return exits_[rank];
  }
  bool Has(const std::string& what) { return Count(what) != 0; }
  int Count(const std::string& what) {
    MutexLock lock(&mutex_);
    return static_cast<int>(std::count(happened_.begin(), happened_.end(), what));
  }

 private:
  void Add(std::string what) {
    MutexLock lock(&mutex_);
    happened_.push_back(std::move(what));
    changed_.SignalAll();
  }
  Mutex mutex_;
  CondVar changed_;
  std::vector<std::string> happened_ ABSL_GUARDED_BY(mutex_);
  std::map<int, v1::RankExit> exits_ ABSL_GUARDED_BY(mutex_);
};

class SupervisorCase : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(BecomeSubreaper().ok());
    options_.rank_binary = "agent/testing/fake_rank";
    options_.slots = 4;
  }

  void Start() { supervisor_ = std::make_unique<RankSupervisor>(options_, &logs_, &events_, &clock_); }

  v1::Launch Launch(const std::string& behavior, int attempt, std::vector<int> devices) {
    v1::Launch launch;
    launch.set_job_id("job");
    launch.set_attempt(attempt);
    launch.mutable_spec()->set_name(behavior);
    launch.set_world_size(static_cast<int>(devices.size()));
    launch.set_ranks(static_cast<int>(devices.size()));
    for (const int device : devices) launch.add_devices(device);
    return launch;
  }

  // A launch of a job with checkpoints.
  v1::Launch SavingLaunch(const std::string& behavior, std::vector<int> devices) {
    v1::Launch launch = Launch(behavior, 1, std::move(devices));
    launch.mutable_spec()->mutable_checkpoint()->set_dir("/runs/7");
    return launch;
  }

  v1::Stop SavingStop(int64_t grace_ms) {
    v1::Stop stop = Stop(1, grace_ms);
    stop.set_save(true);
    return stop;
  }

  v1::Stop Stop(int attempt, int64_t grace_ms) {
    v1::Stop stop;
    stop.set_job_id("job");
    stop.set_attempt(attempt);
    stop.set_grace_ms(grace_ms);
    return stop;
  }

  // The process of rank `rank` of attempt 1.
  ProcessFacts FactsOf(int rank) {
    const absl::StatusOr<std::vector<ProcessFacts>> table = ReadProcessTable();
    EXPECT_TRUE(table.ok());
    for (const ProcessFacts& process : *table) {
      if (ReadRankMark(process.pid) == absl::StrCat("job/1/", rank)) return process;
    }
    ADD_FAILURE() << "no process of rank " << rank;
    return {};
  }

  void StopRank(int rank) {
    ASSERT_EQ(kill(FactsOf(rank).pid, SIGSTOP), 0);
    while (FactsOf(rank).state != 'T') std::this_thread::yield();
  }
  void ContinueRank(int rank) {
    ASSERT_EQ(kill(FactsOf(rank).pid, SIGCONT), 0);
    while (FactsOf(rank).state == 'T') std::this_thread::yield();
  }

  // Starts ranks that block in a reduction, of a job with this restart.hang_seconds.
  void StartBlocked(int64_t hang_seconds, const std::vector<int>& devices) {
    Start();
    v1::Launch launch = Launch("blocks-in-reduce", 1, devices);
    launch.mutable_spec()->mutable_restart()->set_hang_seconds(hang_seconds);
    supervisor_->Launch(launch);
    for (size_t rank = 0; rank < devices.size(); ++rank) events_.Await(absl::StrCat("ready ", rank));
  }

  v1::Locate Locate(int attempt) {
    v1::Locate locate;
    locate.set_job_id("job");
    locate.set_attempt(attempt);
    locate.set_reason("no step for 11 s");
    return locate;
  }

  // Advances the clock while the loop of the supervisor runs.
  void Pass(absl::Duration time) {
    for (absl::Duration passed; passed < time; passed += absl::Seconds(1)) {
      clock_.Advance(absl::Seconds(1));
      supervisor_->HostedAttempts();
    }
    for (int turn = 0; turn < 3; ++turn) supervisor_->HostedAttempts();
  }

  TempDir dir_;
  FakeClock clock_;
  Recorder events_;
  RankSupervisor::Options options_;
  LogKeeper logs_{dir_.path(), [](v1::LogLines) { return true; }};
  std::unique_ptr<RankSupervisor> supervisor_;
};

}  // namespace fsdpd
