#include "fsdp/engine/saver.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <google/protobuf/util/json_util.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "base/check.h"
#include "base/temp_dir.h"
#include "fsdp/checkpoint/dcp/dcp_verify.h"
#include "fsdp/checkpoint/job/job_directory.h"
#include "fsdp/comm/file_store.h"
#include "fsdp/comm/peer_lost.h"

namespace fsdpd {
namespace {

namespace fs = std::filesystem;

// Two ranks.
Plan PlanOf(const std::string& dir) {
  v1::JobSpec job;
  const auto parsed = google::protobuf::util::JsonStringToMessage(
      R"({"name": "test", "data": {"synthetic": {}, "sequence_length": 8},
          "model": {"llama": {"vocab_size": 37, "hidden_size": 20, "intermediate_size": 36, "layers": 1,
                              "heads": 2, "kv_heads": 1}},
          "train": {"steps": 6, "global_batch": 4},
          "fsdp": {"strategy": "STRATEGY_OPTIM_GRADS_PARAMS"},
          "resources": {"ranks_per_node": 2, "device": "DEVICE_CPU"}})",
      &job);
  FSDPD_CHECK(parsed.ok());
  job.mutable_checkpoint()->set_dir(dir);
  job.mutable_checkpoint()->set_every_steps(3);
  auto plan = AcceptedPlan(job);
  FSDPD_CHECK_OK(plan.status());
  return *std::move(plan);
}

constexpr char kToken[] = "of-rank-0";

// As rank 0 does.
void TakeDirectory(const std::string& dir) { std::ofstream(dir + "/.fsdpd_lock") << "- " << kToken; }

// Accepts values and fails reads, like the channel of a rank that is leaving.
class LeavingStore : public Store {
 public:
  absl::Status Set(const std::string&, const std::string&) override { return absl::OkStatus(); }
  absl::StatusOr<std::string> Get(const std::string& key, absl::Duration) override {
    if (key == "save/folder") return std::string(kToken);
    return absl::UnavailableError("leaving");
  }
};

// Directory lock for a saver's options.
std::unique_ptr<DirectoryLock> DirectoryOf(const Saver::Options& options) {
  DirectoryLock::Options directory;
  directory.dir = options.plan->spec.checkpoint.dir;
  directory.job = options.label.job;
  directory.rank = options.position.rank;
  directory.store = options.store;
  directory.stop = options.stop;
  absl::StatusOr<std::unique_ptr<DirectoryLock>> taken = DirectoryLock::Take(directory);
  FSDPD_CHECK_OK(taken.status());
  return *std::move(taken);
}

// Runs a save of rank 1 after step 3 and returns its outcome.
absl::Status SaveAlone(const Plan& plan, Store* store, int attempt = 1) {
  const std::atomic<bool> stop{false};
  const MeshPosition position{plan.spec.mesh, 1};
  const auto snapshot = Snapshot::Make(plan.spec, plan.layout, position);
  FSDPD_CHECK_OK(snapshot.status());
  Saver::Options options;
  options.plan = &plan;
  options.position = position;
  options.store = store;
  options.label.attempt = attempt;
  options.stop = &stop;
  const std::unique_ptr<DirectoryLock> directory = DirectoryOf(options);
  options.directory = directory.get();
  Saver saver(options, snapshot->get());
  saver.Write({3, 12, 3, 1, 0});
  return saver.AwaitLast();
}

// Rank 0 may be committing: without the file the checkpoint would be damaged, while older ones are removed.
TEST(Saver, KeepsItsFileIfTheOutcomeIsUnknown) {
  const TempDir dir;
  TakeDirectory(dir.path());
  LeavingStore store;
  EXPECT_FALSE(SaveAlone(PlanOf(dir.path()), &store).ok());
  EXPECT_TRUE(fs::exists(CheckpointPath(dir.path(), 3) + "/__1_0.distcp"));
}

TEST(Saver, RemovesItsFileAfterAFailedSave) {
  const TempDir dir;
  TakeDirectory(dir.path());
  LocalStore store;
  ASSERT_TRUE(store.Set("save/folder", kToken).ok());
  ASSERT_TRUE(store.Set("save/0", "rank 0: write __0_0.distcp: No space left on device").ok());
  EXPECT_TRUE(IsPeerLost(SaveAlone(PlanOf(dir.path()), &store)));
  EXPECT_FALSE(fs::exists(CheckpointPath(dir.path(), 3)));
}

// Regression: the last save of a job on a full disk failed with "rank 1 failed ...: rank 0: reserve 877673
// bytes".
TEST(Saver, Rank1MarksRank0sErrorAsAPeers) {
  const TempDir dir;
  TakeDirectory(dir.path());
  std::ofstream(CheckpointPath(dir.path(), 3)) << "a file where its directory would be";
  const Plan plan = PlanOf(dir.path());
  LocalStore first;
  ASSERT_TRUE(first.Set("save/folder", kToken).ok());
  ASSERT_TRUE(first.Set("save/0", "rank 0: reserve 877673 bytes").ok());
  const absl::Status of_rank_0 = SaveAlone(plan, &first);
  EXPECT_TRUE(IsPeerLost(of_rank_0)) << of_rank_0;
  const absl::StatusOr<std::string> own = first.Get("save/0/1", absl::ZeroDuration());
  ASSERT_TRUE(own.ok()) << own.status();
  LocalStore second;
  ASSERT_TRUE(second.Set("save/folder", kToken).ok());
  ASSERT_TRUE(second.Set("save/0", "rank 1: " + *own).ok());
  const absl::Status of_itself = SaveAlone(plan, &second);
  EXPECT_FALSE(of_itself.ok());
  EXPECT_FALSE(IsPeerLost(of_itself)) << of_itself;
}

TEST(Saver, Rank0MarksRank1sErrorAsAPeers) {
  const TempDir dir;
  const Plan plan = PlanOf(dir.path());
  LocalStore store;
  ASSERT_TRUE(store.Set("save/0/1", "full: reserve 877673 bytes").ok());
  const std::atomic<bool> stop{false};
  const MeshPosition position{plan.spec.mesh, 0};
  const auto snapshot = Snapshot::Make(plan.spec, plan.layout, position);
  ASSERT_TRUE(snapshot.ok()) << snapshot.status();
  Saver::Options options;
  options.plan = &plan;
  options.position = position;
  options.store = &store;
  options.stop = &stop;
  const std::unique_ptr<DirectoryLock> directory = DirectoryOf(options);
  options.directory = directory.get();
  Saver saver(options, snapshot->get());
  saver.Write({plan.spec.steps, 12, 3, 1, 0});
  const absl::Status saved = saver.Finish();
  EXPECT_EQ(saved.message(), "the checkpoint of the last step was not written: rank 1: reserve 877673 bytes");
  EXPECT_TRUE(IsPeerLost(saved));
}

// Regression: a rank that did not know that its attempt was over renamed its file over that of a committed
// checkpoint.
TEST(Saver, EarlierAttemptCannotReplaceFiles) {
  const TempDir dir;
  TakeDirectory(dir.path());
  LeavingStore store;
  const Plan plan = PlanOf(dir.path());
  EXPECT_FALSE(SaveAlone(plan, &store, /*attempt=*/2).ok());
  const std::string file = CheckpointPath(dir.path(), 3) + "/__1_1.distcp";
  struct stat before, after;
  ASSERT_EQ(stat(file.c_str(), &before), 0);
  EXPECT_FALSE(SaveAlone(plan, &store, /*attempt=*/1).ok());
  ASSERT_EQ(stat(file.c_str(), &after), 0);
  EXPECT_EQ(before.st_ino, after.st_ino);
}

// A program without agents, which would otherwise end ranks that wait for a killed one.
TEST(Saver, NamesAKilledRank) {
  const TempDir dir, rendezvous;
  const Plan plan = PlanOf(dir.path());
  const auto store = FileStore::Open(rendezvous.path(), /*longest_wait=*/absl::Milliseconds(5));
  ASSERT_TRUE(store.ok()) << store.status();
  const std::atomic<bool> stop{false};
  const MeshPosition position{plan.spec.mesh, 0};
  const auto snapshot = Snapshot::Make(plan.spec, plan.layout, position);
  ASSERT_TRUE(snapshot.ok()) << snapshot.status();
  Saver::Options options;
  options.plan = &plan;
  options.position = position;
  options.store = store->get();
  options.stop = &stop;
  const std::unique_ptr<DirectoryLock> directory = DirectoryOf(options);
  options.directory = directory.get();
  Saver saver(options, snapshot->get());
  saver.Write({3, 12, 3, 1, 0});
  const absl::Status saved = saver.AwaitLast();
  EXPECT_THAT(saved.message(), ::testing::HasSubstr("rank 1 did not answer")) << saved;
  EXPECT_FALSE(fs::exists(CheckpointPath(dir.path(), 3)));
}

// Answers at first and then never again, like a coordinator that went away.
class SilentStore : public LocalStore {
 public:
  absl::StatusOr<std::string> Get(const std::string& key, absl::Duration timeout) override {
    if (key == "save/folder") return LocalStore::Get(key, timeout);
    return absl::DeadlineExceededError("silence");
  }
};

TEST(Saver, CommitsWithoutTheStore) {
  const TempDir dir;
  const Plan plan = PlanOf(dir.path());
  SilentStore store;
  const std::atomic<bool> stop{false};
  const auto save = [&](int64_t rank) {
    const MeshPosition position{plan.spec.mesh, rank};
    const auto snapshot = Snapshot::Make(plan.spec, plan.layout, position);
    FSDPD_CHECK_OK(snapshot.status());
    Saver::Options options;
    options.plan = &plan;
    options.position = position;
    options.store = &store;
    options.store_may_be_unreachable = true;
    options.stop = &stop;
    const std::unique_ptr<DirectoryLock> directory = DirectoryOf(options);
    options.directory = directory.get();
    Saver saver(options, snapshot->get());
    for (const int64_t step : {3, 6}) {
      saver.Write({step, 4 * step, step, 1, 0});
      const absl::Status saved = saver.AwaitLast();
      EXPECT_TRUE(saved.ok()) << "rank " << rank << ": " << saved;
    }
  };
  std::thread other([&] { save(1); });
  save(0);
  other.join();
  for (const int64_t step : {3, 6}) {
    const auto verdict = VerifyDcp(CheckpointPath(dir.path(), step), /*threads=*/1);
    ASSERT_TRUE(verdict.ok()) << verdict.status();
    EXPECT_TRUE(verdict->violations.empty());
  }
}

// The lock is gone with the directory: two runs could write into its replacement.
TEST(Saver, RelocksARemovedDirectory) {
  const TempDir root;
  const std::string dir = root.File("run");
  const Plan plan = PlanOf(dir);
  const std::atomic<bool> stop{false};
  const MeshPosition position{plan.spec.mesh, 0};
  const auto snapshot = Snapshot::Make(plan.spec, plan.layout, position);
  ASSERT_TRUE(snapshot.ok()) << snapshot.status();
  LocalStore store;
  ASSERT_TRUE(store.Set("save/0/1", "rank 1 has no file").ok());
  ASSERT_TRUE(store.Set("save/1/1", "rank 1 has no file").ok());
  Saver::Options options;
  options.plan = &plan;
  options.position = position;
  options.store = &store;
  options.stop = &stop;
  options.label.job = "first";
  const std::unique_ptr<DirectoryLock> directory = DirectoryOf(options);
  options.directory = directory.get();
  Saver saver(options, snapshot->get());
  const auto save = [&](int64_t step) {
    saver.Write({step, 4 * step, step, 1, 0});
    return saver.AwaitLast();
  };
  fs::remove_all(dir);
  EXPECT_THAT(save(3).message(), ::testing::HasSubstr("rank 1 has no file")) << "rank 0 could write its own";
  LocalStore other;
  DirectoryLock::Options second;
  second.dir = dir;
  second.job = "second";
  second.store = &other;
  second.stop = &stop;
  EXPECT_THAT(DirectoryLock::Take(second).status().message(), ::testing::HasSubstr("is locked by first"));

  fs::remove_all(dir);
  fs::create_directories(dir);
  const int faster = open((dir + "/.fsdpd_lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  ASSERT_EQ(flock(faster, LOCK_EX | LOCK_NB), 0);
  std::ofstream(dir + "/.fsdpd_lock") << "second token";
  EXPECT_THAT(
      save(6).message(),
      ::testing::AllOf(::testing::HasSubstr(dir + " was removed during training, and the new directory "
                                                  "cannot be used: "),
                       ::testing::HasSubstr("is locked by second")));
  EXPECT_FALSE(fs::exists(CheckpointPath(dir, 6)));
  close(faster);
}

}  // namespace
}  // namespace fsdpd
