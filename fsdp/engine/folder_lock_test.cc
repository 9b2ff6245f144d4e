#include "fsdp/engine/folder_lock.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "base/temp_dir.h"
#include "fsdp/checkpoint/job_folder.h"
#include "fsdp/comm/peer_lost.h"
#include "fsdp/engine/rank_fault.h"

namespace fsdpd {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;
namespace fs = std::filesystem;

const std::atomic<bool> never{false};

FolderLock::Options Of(const std::string& dir, Store* store, int64_t rank = 0, const std::string& job = "") {
  FolderLock::Options options;
  options.dir = dir;
  options.job = job;
  options.rank = rank;
  options.store = store;
  options.stop = &never;
  return options;
}

absl::Status Take(const FolderLock::Options& options) { return FolderLock::Take(options).status(); }

TEST(FolderLock, AFolderIsOneRunsAtATime) {
  const TempDir dir;
  LocalStore store, other;
  auto first = FolderLock::Take(Of(dir.path(), &store, 0, "first"));
  ASSERT_TRUE(first.ok()) << first.status();
  const absl::Status refused = Take(Of(dir.path(), &other, 0, "second"));
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition) << refused;
  EXPECT_THAT(refused.message(), MatchesRegex("checkpoint.dir: .* is locked by first on host .+, which .*"));
  ASSERT_TRUE(FaultOf(refused).has_value());
  EXPECT_EQ(FaultOf(refused)->kind(), v1::RankFault::KIND_CONFIGURATION);
  EXPECT_FALSE(IsPeerLost(refused));
  // The second's other rank does not wait forever, and takes no blame.
  const absl::Status told = Take(Of(dir.path(), &other, 1, "second"));
  EXPECT_THAT(told.message(), MatchesRegex("checkpoint.dir: rank 0: .*is locked by first.*"));
  EXPECT_TRUE(IsPeerLost(told));
  first->reset();
  LocalStore third;
  EXPECT_TRUE(Take(Of(dir.path(), &third, 0, "second")).ok());
}

// Two jobs started at the same moment: the lock file still named a job that had ended before both.
TEST(FolderLock, NamesTheHolderAndNotTheOneBeforeItThatHadSigned) {
  const TempDir dir;
  std::ofstream(dir.File(".fsdpd_lock")) << "ended-before token host\n";
  const int holder = open(dir.File(".fsdpd_lock").c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_EQ(flock(holder, LOCK_EX | LOCK_NB), 0);
  std::thread signs([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    std::ofstream(dir.File(".fsdpd_lock")) << "first token here\n";
  });
  LocalStore store;
  EXPECT_THAT(Take(Of(dir.path(), &store, 0, "second")).message(),
              HasSubstr("is locked by first on host here, which writes there"));
  signs.join();
  close(holder);
}

// A file server drops the locks of a node that was lost: its rank 0 may live on.
TEST(FolderLock, AHolderWhoseLockWentToALaterAttemptKeepsNothing) {
  const TempDir dir;
  LocalStore store;
  auto lock = FolderLock::Take(Of(dir.path(), &store, 0, "job"));
  ASSERT_TRUE(lock.ok()) << lock.status();
  EXPECT_TRUE((*lock)->Keep().ok());
  std::ofstream(dir.File(".fsdpd_lock")) << "job another-token there\n";
  for (const absl::Status& status : {(*lock)->Keep(), (*lock)->CheckHeld()}) {
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    EXPECT_THAT(status.message(), HasSubstr("was taken by a later attempt on host there"));
  }
  const std::string own = (*lock)->said_dir(), later = dir.File(".fsdpd_said.another-token");
  for (const std::string& messages : {own, later}) ASSERT_TRUE(fs::create_directory(messages));
  lock->reset();
  EXPECT_FALSE(fs::exists(own));
  EXPECT_TRUE(fs::exists(later)) << "the later attempt's ranks save through it";
}

TEST(FolderLock, AnAttemptWaitsForTheOneBefore) {
  const TempDir dir;
  LocalStore store, other;
  auto first = FolderLock::Take(Of(dir.path(), &store, 0, "job"));
  ASSERT_TRUE(first.ok()) << first.status();
  std::atomic<bool> taken{false};
  std::thread second([&] {
    EXPECT_TRUE(Take(Of(dir.path(), &other, 0, "job")).ok());
    taken = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_FALSE(taken);
  first->reset();
  second.join();
}

// What another run reads, or writes, must not go since this one was started there.
TEST(FolderLock, OnlyWhoHoldsTheFolderRemovesAndRenames) {
  const TempDir dir;
  const std::string damaged = CheckpointPath(dir.path(), 3), part = "/__1_0.distcp.abc.part";
  for (const int64_t step : {3, 6}) {
    fs::create_directories(CheckpointPath(dir.path(), step));
    std::ofstream(CheckpointPath(dir.path(), step) + "/.metadata") << "x";
    std::ofstream(CheckpointPath(dir.path(), step) + part) << "half";
  }
  const std::string messages = dir.File(".fsdpd_said.of-an-attempt-before");
  fs::create_directories(messages);
  const int other = open(dir.File(".fsdpd_lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  ASSERT_EQ(flock(other, LOCK_EX | LOCK_NB), 0);
  LocalStore store;
  EXPECT_EQ(Take(Of(dir.path(), &store)).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(fs::exists(damaged + part));
  EXPECT_TRUE(fs::exists(messages));
  EXPECT_TRUE(fs::exists(CheckpointPath(dir.path(), 6) + part));
  close(other);
  LocalStore free;
  const auto lock = FolderLock::Take(Of(dir.path(), &free));
  ASSERT_TRUE(lock.ok()) << lock.status();
  ASSERT_TRUE((*lock)->Clear({damaged}).ok());
  EXPECT_TRUE(fs::exists(damaged + ".damaged/.metadata"));
  EXPECT_FALSE(fs::exists(damaged));
  EXPECT_FALSE(fs::exists(messages));
  EXPECT_TRUE(IsCheckpoint(CheckpointPath(dir.path(), 6)));
  EXPECT_FALSE(fs::exists(CheckpointPath(dir.path(), 6) + part));
}

TEST(FolderLock, AFolderThatNodesDoNotShareIsKnownBeforeTheFirstStep) {
  const TempDir dir, elsewhere;
  LocalStore store;
  ASSERT_TRUE(Take(Of(dir.path(), &store)).ok());
  const absl::Status status = Take(Of(elsewhere.path(), &store, 1));
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_THAT(status.message(), HasSubstr("rank 1 does not see in " + elsewhere.path()));
}

// It is not mounted: on the local disk its place would be taken by an empty one.
TEST(FolderLock, AMissingFolderOfAJobThatHasCheckpointsIsNotMade) {
  const TempDir root;
  const std::string dir = root.File("run");
  LocalStore store;
  FolderLock::Options options = Of(dir, &store);
  options.has_checkpoints = true;
  EXPECT_TRUE(Take(options).ok());
  options.rank = 1;
  EXPECT_TRUE(Take(options).ok());
  EXPECT_FALSE(fs::exists(dir));
}

}  // namespace
}  // namespace fsdpd
