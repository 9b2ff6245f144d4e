#include "agent/logs/log_bound.h"

#include <absl/strings/str_cat.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <thread>

#include "base/temp_dir.h"
#include "base/unique_fd.h"

namespace fsdpd {
namespace {

constexpr int64_t kBound = 1 << 20;

class LogBoundTest : public testing::Test {
 protected:
  void Write(const std::string& text) {
    ASSERT_EQ(write(log_.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }
  void WriteLines(int count) {
    std::string text;
    for (int i = 0; i < count; ++i) absl::StrAppend(&text, "line ", lines_++, "\n");
    Write(text);
  }
  // Waits for the check that drops the excess.
  LogFront AwaitFront(int64_t least_bytes) {
    while (FrontOf(path_).bytes < least_bytes) std::this_thread::yield();
    return FrontOf(path_);
  }
  struct stat Facts() {
    struct stat facts = {};
    EXPECT_EQ(stat(path_.c_str(), &facts), 0);
    return facts;
  }
  std::string ReadAt(int64_t offset, size_t bytes) {
    std::string text(bytes, '\0');
    EXPECT_EQ(pread(log_.get(), text.data(), bytes, offset), static_cast<ssize_t>(bytes));
    return text;
  }
  // The .front file is written before the hole is punched.
  void AwaitHole(int64_t bytes) {
    while (lseek(log_.get(), 0, SEEK_DATA) < bytes / 4096 * 4096) std::this_thread::yield();
  }

  TempDir dir_;
  const std::string path_ = dir_.File("rank-0.log");
  const UniqueFd log_{open(path_.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644)};
  int lines_ = 0;
  std::atomic<int> removed_{0};
  LogBound bound_{kBound, [this](const std::string& path) { removed_ += path == path_ ? 1 : 0; }};
};

TEST_F(LogBoundTest, DropsOldestLinesInPlace) {
  bound_.Watch(path_);
  WriteLines(400000);
  const int64_t size = Facts().st_size;
  ASSERT_GT(size, 4 * kBound);
  const LogFront front = AwaitFront(size - kBound);
  AwaitHole(front.bytes);
  const std::string first = absl::StrCat("line ", front.lines, "\n");
  EXPECT_EQ(ReadAt(front.bytes, first.size()), first);
  EXPECT_EQ(ReadAt(front.bytes - 1, 1), std::string(1, '\0'));
  EXPECT_EQ(Facts().st_size, size) << "who writes and who reads go on where they were";
  EXPECT_LE(Facts().st_blocks * 512, kBound);
  EXPECT_GE(size - front.bytes, kBound / 2) << "and no more of them than must be";
}

TEST_F(LogBoundTest, DropsRepeatedly) {
  bound_.Watch(path_);
  for (int turn = 0; turn < 3; ++turn) {
    WriteLines(100000);
    AwaitFront(Facts().st_size - kBound);
  }
  const LogFront front = FrontOf(path_);
  const std::string first = absl::StrCat("line ", front.lines, "\n");
  EXPECT_EQ(ReadAt(front.bytes, first.size()), first);
}

TEST_F(LogBoundTest, DropsALineWithoutEnd) {
  bound_.Watch(path_);
  Write("a line\n");
  Write(std::string(3 * kBound, '.'));
  EXPECT_EQ(AwaitFront(kBound).lines, 1);
}

TEST_F(LogBoundTest, ChecksOnceMoreAfterUnwatch) {
  WriteLines(400000);
  bound_.Watch(path_);
  bound_.Unwatch(path_);
  AwaitFront(kBound);
}

TEST_F(LogBoundTest, KeepsLogWithinTheLimit) {
  WriteLines(10);
  bound_.Watch(path_);
  EXPECT_EQ(FrontOf(path_).bytes, 0);
  std::ofstream(path_ + ".front") << "torn";
  EXPECT_EQ(FrontOf(path_).bytes, 0);
}

// Regression: the unlinked file grew until the disk was full, without a log line or a metric.
TEST_F(LogBoundTest, LimitsAndReportsARemovedLog) {
  bound_.Watch(path_);
  WriteLines(400000);
  AwaitHole(AwaitFront(1).bytes);
  std::filesystem::remove(path_);
  while (removed_ == 0) std::this_thread::yield();
  for (int turn = 0; turn < 3; ++turn) {
    WriteLines(400000);
    struct stat facts = {};
    do {
      ASSERT_EQ(fstat(log_.get(), &facts), 0);
    } while (facts.st_blocks * 512 > kBound);
  }
  const std::string last = absl::StrCat("line ", lines_ - 1, "\n");
  EXPECT_EQ(ReadAt(lseek(log_.get(), 0, SEEK_END) - static_cast<int64_t>(last.size()), last.size()), last);
}

TEST_F(LogBoundTest, ReportsAReplacedLogOnce) {
  bound_.Watch(path_);
  std::filesystem::rename(path_, path_ + ".1");
  std::ofstream(path_) << std::string(2 * kBound, 'x');
  while (removed_ == 0) std::this_thread::yield();
  const int reported = removed_;  // More than once if a check saw the moment without a file.
  WriteLines(400000);
  struct stat facts = {};
  do {
    ASSERT_EQ(fstat(log_.get(), &facts), 0);
  } while (facts.st_blocks * 512 > kBound);
  EXPECT_LE(removed_ - reported, 1);
  EXPECT_GT(Facts().st_blocks * 512, kBound);
}

TEST_F(LogBoundTest, TruncatedLogHasNoFront) {
  bound_.Watch(path_);
  WriteLines(400000);
  AwaitHole(AwaitFront(1).bytes);
  ASSERT_EQ(ftruncate(log_.get(), 0), 0);
  EXPECT_EQ(FrontOf(path_).bytes, 0);
  WriteLines(10);
  EXPECT_EQ(FrontOf(path_).bytes, 0) << "shorter than the old front";
  WriteLines(100000);  // At least as long as the old front, and within the limit of the new log.
  EXPECT_EQ(FrontOf(path_).lines, 0);
}

TEST_F(LogBoundTest, LimitsATruncatedLog) {
  bound_.Watch(path_);
  WriteLines(400000);
  AwaitHole(AwaitFront(1).bytes);
  ASSERT_EQ(ftruncate(log_.get(), 0), 0);
  lines_ = 0;
  WriteLines(400000);
  const LogFront front = AwaitFront(1);
  EXPECT_EQ(ReadAt(front.bytes, 5), "line ");
  const std::string first = ReadAt(front.bytes, 32);
  EXPECT_EQ(first.substr(0, first.find('\n')), absl::StrCat("line ", front.lines));
}

}  // namespace
}  // namespace fsdpd
