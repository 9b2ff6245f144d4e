#include "agent/logs/log_loss.h"

#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "base/temp_dir.h"

namespace fsdpd {
namespace {

class LogLossTest : public testing::Test {
 protected:
  void SetUp() override { std::ofstream(log_) << "one\n"; }
  std::string Text() const {
    std::ostringstream text;
    text << std::ifstream(log_).rdbuf();
    return text.str();
  }
  void AwaitText(const std::string& part) const {
    while (Text().find(part) == std::string::npos) std::this_thread::yield();
  }

  TempDir dir_;
  const std::string log_ = dir_.File("rank-0.log");
  std::atomic<int64_t> lost_ns_{0};
  LogLoss loss_{dir_.path(), [this](absl::Duration lost) { lost_ns_ += absl::ToInt64Nanoseconds(lost); }};
};

TEST_F(LogLossTest, FullDiskIsReportedMarkedAndCounted) {
  // The write probe, replaced so that writes to it fail like on a full disk.
  std::filesystem::create_symlink("/dev/full", dir_.File(".write-probe"));
  loss_.Watch(log_);
  while (loss_.Notice().empty()) std::this_thread::yield();
  EXPECT_EQ(loss_.Notice(),
            "[fsdpd-agent: output of the rank is being lost: " + dir_.path() + ": No space left on device]");
  EXPECT_EQ(Text(), "one\n");
  std::filesystem::remove(dir_.File(".write-probe"));
  AwaitText("one\n[fsdpd-agent: lines are missing here, ");
  EXPECT_EQ(loss_.Notice(), "");
  EXPECT_GT(lost_ns_, 0);
}

// Regression: the loss was neither counted nor logged, and readers got NOT_FOUND.
TEST_F(LogLossTest, RemovedLogIsMarkedAndCountedUntilItsRankEnds) {
  loss_.Watch(log_);
  std::filesystem::remove(log_);
  loss_.Removed(log_);
  EXPECT_EQ(Text().find("[fsdpd-agent: the log file was removed or replaced"), 0u) << Text();
  while (lost_ns_ == 0) std::this_thread::yield();
  loss_.Unwatch(log_);
  std::filesystem::remove(log_);
  loss_.Removed(log_);
  EXPECT_FALSE(std::filesystem::exists(log_)) << "no rank writes to it";
}

}  // namespace
}  // namespace fsdpd
