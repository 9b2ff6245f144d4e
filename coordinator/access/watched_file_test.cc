#include "coordinator/access/watched_file.h"

#include <absl/strings/str_cat.h>
#include <absl/synchronization/notification.h>
#include <absl/time/clock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <atomic>
#include <fstream>
#include <string>
#include <vector>

#include "base/temp_dir.h"
#include "coordinator/testing/watched_thread.h"

namespace fsdpd {
namespace {

// Collects the applied contents.
class Reader {
 public:
  Reader(const std::string& path, Clock* clock)
      : file_("words", path, clock, [this](const std::string& text) {
          if (text == "typo") return absl::InvalidArgumentError("line 1: typo");
          taken_.push_back(text);
          return absl::OkStatus();
        }) {}
  // The contents that were applied last.
  std::vector<std::string> Poll() {
    taken_.clear();
    EXPECT_EQ(file_.Reread(), absl::OkStatus());
    return taken_;
  }
  WatchedFile* file() { return &file_; }

 private:
  std::vector<std::string> taken_;
  WatchedFile file_;
};

using Texts = std::vector<std::string>;

TEST(WatchedFile, RereadsOnlyAfterAWrite) {
  const TempDir dir;
  FakeClock clock;
  clock.StepWall(absl::Now() + absl::Hours(1) - clock.Wall());  // Long after it was written.
  std::ofstream(dir.File("f")) << "one";
  Reader reader(dir.File("f"), &clock);
  EXPECT_EQ(reader.Poll(), Texts{"one"});
  EXPECT_EQ(reader.Poll(), Texts{});
  std::ofstream(dir.File("f")) << "two!";
  EXPECT_EQ(reader.Poll(), Texts{"two!"});
  std::ofstream(dir.File("f"), std::ofstream::trunc);
  EXPECT_EQ(reader.Poll(), Texts{""});
}

TEST(WatchedFile, RereadsRecentlyWrittenFileOnce) {
  const TempDir dir;
  FakeClock clock;
  clock.StepWall(absl::Now() - clock.Wall());
  std::ofstream(dir.File("f")) << "one";
  Reader reader(dir.File("f"), &clock);
  EXPECT_EQ(reader.Poll(), Texts{"one"});
  EXPECT_EQ(reader.Poll(), Texts{"one"});
}

// Regression: a reader that was suspended between read and store restored a revoked token.
TEST(WatchedFile, SlowReaderDoesNotRestoreOlderContents) {
  const TempDir dir;
  std::ofstream(dir.File("f")) << "old";
  absl::Notification slow_has_read, go_on;
  std::atomic<bool> first{true};
  Mutex mutex;
  std::string in_use;
  WatchedFile file("words", dir.File("f"), Clock::Real(), [&](const std::string& text) {
    if (first.exchange(false)) {
      slow_has_read.Notify();
      go_on.WaitForNotification();
    }
    MutexLock lock(&mutex);
    in_use = text;
    return absl::OkStatus();
  });
  WatchedThread slow([&] { file.Refresh(); });
  slow_has_read.WaitForNotification();
  std::ofstream(dir.File("f")) << "new, and longer";
  WatchedThread fast([&] { file.Refresh(); });
  EXPECT_FALSE(fast.EndsBeforeItBlocks());
  go_on.Notify();
  slow.Join();
  fast.Join();
  MutexLock lock(&mutex);
  EXPECT_EQ(in_use, "new, and longer");
}

// Regression: the error was known only to one log line.
TEST(WatchedFile, IsStaleWhileInvalid) {
  const TempDir dir;
  FakeClock clock;
  clock.StepWall(absl::Now() + absl::Hours(1) - clock.Wall());
  std::ofstream(dir.File("f")) << "one";
  Reader reader(dir.File("f"), &clock);
  EXPECT_TRUE(reader.file()->Refresh());
  std::ofstream(dir.File("f")) << "typo";
  for (int look = 0; look < 3; ++look) EXPECT_FALSE(reader.file()->Refresh());
  EXPECT_EQ(reader.file()->Reread().message(), absl::StrCat(dir.File("f"), ": line 1: typo"));
  std::ofstream(dir.File("f")) << "two";
  EXPECT_TRUE(reader.file()->Refresh());
  ASSERT_EQ(remove(dir.File("f").c_str()), 0);
  EXPECT_FALSE(reader.file()->Refresh());
}

TEST(WatchedFile, RejectsMissingOrWorldWritableFile) {
  const TempDir dir;
  FakeClock clock;
  std::ofstream(dir.File("f")) << "one";
  ASSERT_EQ(chmod(dir.File("f").c_str(), 0666), 0);
  const auto refused = [&](const std::string& path) { return Reader(path, &clock).file()->Reread(); };
  EXPECT_EQ(refused(dir.File("f")).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(refused(dir.path()).message(), absl::StrCat(dir.path(), ": Is a directory"));
  EXPECT_EQ(refused(dir.File("none")).code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace fsdpd
