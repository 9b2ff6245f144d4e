#include "fsdp/engine/directory_lock.h"

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <limits.h>
#include <sys/file.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/temp_dir.h"
#include "fsdp/checkpoint/job/job_directory.h"
#include "fsdp/comm/peer_lost.h"
#include "fsdp/engine/error_cause.h"

namespace fsdpd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
namespace fs = std::filesystem;

const std::atomic<bool> never{false};

DirectoryLock::Options Of(const std::string& dir, Store* store, int64_t rank = 0,
                          const std::string& job = "") {
  DirectoryLock::Options options;
  options.dir = dir;
  options.job = job;
  options.rank = rank;
  options.store = store;
  options.stop = &never;
  return options;
}

// Takes the log lines about the wait for a lock, and calls `then` for each that names a holder.
class LockLog {
 public:
  explicit LockLog(std::function<void()> then) {
    TakeLog([this, then = std::move(then)](Severity, absl::string_view line) {
      lines_.emplace_back(line);
      if (absl::StartsWith(line, "waiting for the lock of checkpoint.dir ")) then();
    });
  }
  ~LockLog() { TakeLog(nullptr); }
  const std::vector<std::string>& lines() const { return lines_; }

 private:
  std::vector<std::string> lines_;
};

absl::Status Take(const DirectoryLock::Options& options) { return DirectoryLock::Take(options).status(); }

TEST(DirectoryLock, IsExclusive) {
  const TempDir dir;
  LocalStore store, other;
  auto first = DirectoryLock::Take(Of(dir.path(), &store, 0, "first"));
  ASSERT_TRUE(first.ok()) << first.status();
  const absl::Status refused = Take(Of(dir.path(), &other, 0, "second"));
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition) << refused;
  EXPECT_THAT(refused.message(), MatchesRegex("checkpoint.dir: .* is locked by first on host .+, which .*"));
  ASSERT_TRUE(CauseOf(refused).has_value());
  EXPECT_EQ(CauseOf(refused)->kind(), v1::ErrorClass::KIND_CONFIGURATION);
  EXPECT_FALSE(IsPeerLost(refused));
  // The other rank of the second job does not wait forever, and is not blamed.
  const absl::Status told = Take(Of(dir.path(), &other, 1, "second"));
  EXPECT_THAT(told.message(), MatchesRegex("checkpoint.dir: rank 0: .*is locked by first.*"));
  EXPECT_TRUE(IsPeerLost(told));
  first->reset();
  LocalStore third;
  EXPECT_TRUE(Take(Of(dir.path(), &third, 0, "second")).ok());
}

// A lock file with `content`, locked through another file description of this process.
class LockedElsewhere {
 public:
  LockedElsewhere(const TempDir& dir, const std::string& content) : path_(dir.File(".fsdpd_lock")) {
    Sign(content);
    file_ = open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    EXPECT_EQ(flock(file_, LOCK_EX | LOCK_NB), 0);
  }
  ~LockedElsewhere() { Release(); }
  void Sign(const std::string& content) { std::ofstream(path_) << content; }
  void Release() {
    if (file_ >= 0) close(std::exchange(file_, -1));
  }

 private:
  const std::string path_;
  int file_ = -1;
};

// Regression: two jobs started at the same moment, and the lock file still named a job that had ended before.
TEST(DirectoryLock, NamesTheCurrentHolder) {
  const TempDir dir;
  LockedElsewhere first(dir, "ended-before token host\n");
  LocalStore store;
  FakeClock clock;
  DirectoryLock::Options second = Of(dir.path(), &store, 0, "second");
  second.clock = &clock;
  LockLog log([&] {
    char host[HOST_NAME_MAX + 1] = {};
    ASSERT_EQ(gethostname(host, HOST_NAME_MAX), 0);
    first.Sign(absl::StrCat("first token ", host, "\n"));
    clock.Advance(absl::Seconds(1));
  });
  EXPECT_THAT(Take(second).message(), MatchesRegex(".*is locked by first on host .*, which writes there.*"));
}

// Regression: a file server held the lock of a lost node for 90 s, and a new job failed after one second.
TEST(DirectoryLock, WaitsForAHolderThatMayBeGone) {
  for (const char* content : {"ended token lost-node\n", "- token lost-node\n", ""}) {
    for (const bool goes : {true, false}) {
      SCOPED_TRACE(absl::StrCat(content, goes));
      const TempDir dir;
      LockedElsewhere gone(dir, content);
      LocalStore store;
      FakeClock clock;
      DirectoryLock::Options options = Of(dir.path(), &store);
      options.clock = &clock;
      LockLog log([&] {
        clock.Advance(goes ? absl::Seconds(170) : absl::Seconds(190));
        if (goes) gone.Release();
      });
      const absl::Status taken = Take(options);
      EXPECT_EQ(taken.ok(), goes) << taken;
      ASSERT_EQ(log.lines().size(), goes ? 2u : 1u);
      EXPECT_THAT(log.lines()[0], HasSubstr(absl::StrContains(content, "ended")
                                                ? "holder=ended on host lost-node seconds_left=180"
                                                : "holder=another run"));
      if (goes) EXPECT_THAT(log.lines()[1], HasSubstr("took the lock of checkpoint.dir path="));
      if (!goes) EXPECT_THAT(taken.message(), HasSubstr("or end that process if its job has ended"));
    }
  }
}

// Regression: it was logged as 180 whatever had passed, and the time waited was not logged.
TEST(DirectoryLock, LogsTheRemainingAndTheTotalWait) {
  const TempDir dir;
  LockedElsewhere gone(dir, "first token lost-node\n");
  LocalStore store;
  FakeClock clock;
  DirectoryLock::Options options = Of(dir.path(), &store, 0, "third");
  options.clock = &clock;
  int holders = 0;
  LockLog log([&] {
    clock.Advance(absl::Seconds(100) / ++holders);
    if (holders == 1) gone.Sign("second token lost-node\n");
    if (holders == 2) gone.Release();
  });
  EXPECT_TRUE(Take(options).ok());
  EXPECT_THAT(log.lines(), ElementsAre(HasSubstr("holder=first on host lost-node seconds_left=180"),
                                       HasSubstr("holder=second on host lost-node seconds_left=80"),
                                       HasSubstr("waited_seconds=150")));
}

// A file server drops the locks of a lost node, whose rank 0 may still be alive.
TEST(DirectoryLock, KeepFailsAfterLosingTheLock) {
  const TempDir dir;
  LocalStore store;
  auto lock = DirectoryLock::Take(Of(dir.path(), &store, 0, "job"));
  ASSERT_TRUE(lock.ok()) << lock.status();
  EXPECT_TRUE((*lock)->ActivationSaving().ok());
  std::ofstream(dir.File(".fsdpd_lock")) << "job another-token there\n";
  for (const absl::Status& status : {(*lock)->ActivationSaving(), (*lock)->CheckHeld()}) {
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    EXPECT_THAT(status.message(), HasSubstr("was taken by a later attempt on host there"));
  }
  const std::string own = (*lock)->message_dir(), later = dir.File(".fsdpd_said.another-token");
  for (const std::string& messages : {own, later}) ASSERT_TRUE(fs::create_directory(messages));
  lock->reset();
  EXPECT_FALSE(fs::exists(own));
  EXPECT_TRUE(fs::exists(later)) << "the later attempt's ranks save through it";
}

TEST(DirectoryLock, WaitsForAnEarlierAttempt) {
  const TempDir dir;
  LocalStore store, other;
  auto first = DirectoryLock::Take(Of(dir.path(), &store, 0, "job"));
  ASSERT_TRUE(first.ok()) << first.status();
  DirectoryLock::Options second = Of(dir.path(), &other, 0, "job");
  LockLog log([&] { first->reset(); });
  EXPECT_TRUE(Take(second).ok());
  ASSERT_FALSE(log.lines().empty());
  EXPECT_THAT(log.lines()[0], HasSubstr("holder=an earlier attempt on host "));
}

// What another run reads or writes must not be removed because this one was started in its directory.
TEST(DirectoryLock, OnlyTheHolderRemovesAndRenames) {
  const TempDir dir;
  const std::string damaged = CheckpointPath(dir.path(), 3), part = "/__1_0.distcp.abc.part";
  for (const int64_t step : {3, 6}) {
    fs::create_directories(CheckpointPath(dir.path(), step));
    std::ofstream(CheckpointPath(dir.path(), step) + "/.metadata") << "x";
    std::ofstream(CheckpointPath(dir.path(), step) + part) << "half";
  }
  const std::string messages = dir.File(".fsdpd_said.of-an-attempt-before");
  fs::create_directories(messages);
  LockedElsewhere other(dir, "");
  LocalStore store;
  FakeClock clock;
  DirectoryLock::Options refused = Of(dir.path(), &store);
  refused.clock = &clock;
  {
    LockLog log([&] { clock.Advance(absl::Minutes(4)); });
    EXPECT_EQ(Take(refused).code(), absl::StatusCode::kFailedPrecondition);
  }
  EXPECT_TRUE(fs::exists(damaged + part));
  EXPECT_TRUE(fs::exists(messages));
  EXPECT_TRUE(fs::exists(CheckpointPath(dir.path(), 6) + part));
  other.Release();
  LocalStore free;
  const auto lock = DirectoryLock::Take(Of(dir.path(), &free));
  ASSERT_TRUE(lock.ok()) << lock.status();
  ASSERT_TRUE((*lock)->Clear({damaged}).ok());
  EXPECT_TRUE(fs::exists(damaged + ".damaged/.metadata"));
  EXPECT_FALSE(fs::exists(damaged));
  EXPECT_FALSE(fs::exists(messages));
  EXPECT_TRUE(IsCheckpoint(CheckpointPath(dir.path(), 6)));
  EXPECT_FALSE(fs::exists(CheckpointPath(dir.path(), 6) + part));
}

TEST(DirectoryLock, DetectsAnUnsharedDirectory) {
  const TempDir dir, elsewhere;
  LocalStore store;
  ASSERT_TRUE(Take(Of(dir.path(), &store)).ok());
  const absl::Status status = Take(Of(elsewhere.path(), &store, 1));
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_THAT(status.message(), HasSubstr("rank 1: " + elsewhere.path()));
}

// It is not mounted: creating it would put an empty directory on the local disk in its place.
TEST(DirectoryLock, DoesNotCreateAMissingDirectoryAfterACommit) {
  const TempDir root;
  const std::string dir = root.File("run");
  LocalStore store;
  DirectoryLock::Options options = Of(dir, &store);
  options.has_checkpoints = true;
  EXPECT_TRUE(Take(options).ok());
  options.rank = 1;
  EXPECT_TRUE(Take(options).ok());
  EXPECT_FALSE(fs::exists(dir));
}

}  // namespace
}  // namespace fsdpd
