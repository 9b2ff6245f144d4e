// Test fixture of the log keeper of a node, with a reader that records what it gets.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "agent/logs/log_keeper.h"
#include "base/mutex.h"
#include "base/temp_dir.h"
#include "base/unique_fd.h"

namespace fsdpd {

inline const RankId kRank{{"job", 2}, 3};

// Delivered messages; `Release` unblocks a slow reader.
class LogReader {
 public:
  bool Take(v1::LogLines lines) {
    MutexLock lock(&mutex_);
    while (held_) changed_.Wait(&mutex_);
    if (gone_) {
      ++refused_;
      changed_.SignalAll();
      return false;
    }
    ended_ += lines.end() ? 1 : 0;
    error_ += lines.error();
    no_such_log_ |= lines.no_such_log();
    for (const v1::LogLines::Line& line : lines.lines()) {
      steps_.push_back(line.step());
      text_ += std::to_string(line.rank()) + (line.notice() ? "!" : ":") + line.line() + "\n";
    }
    changed_.SignalAll();
    return true;
  }
  std::string AwaitEnd() { return AwaitEnds(1); }
  std::string AwaitEnds(int count) {
    MutexLock lock(&mutex_);
    while (ended_ < count && changed_.WaitFor(&mutex_, std::chrono::seconds(10))) {
    }
    EXPECT_EQ(ended_, count);
    return text_;
  }
  std::string AwaitText(const std::string& part) {
    MutexLock lock(&mutex_);
    while (text_.find(part) == std::string::npos && changed_.WaitFor(&mutex_, std::chrono::seconds(10))) {
    }
    EXPECT_NE(text_.find(part), std::string::npos) << part << " is not in " << text_;
    return text_;
  }
  std::vector<int64_t> steps() {
    MutexLock lock(&mutex_);
    return steps_;
  }
  int AwaitLines(int count) {
    MutexLock lock(&mutex_);
    while (static_cast<int>(steps_.size()) < count && changed_.WaitFor(&mutex_, std::chrono::seconds(10))) {
    }
    return static_cast<int>(steps_.size());
  }
  void AwaitRefused() {
    MutexLock lock(&mutex_);
    while (refused_ == 0 && changed_.WaitFor(&mutex_, std::chrono::seconds(10))) {
    }
    EXPECT_EQ(refused_, 1);
  }
  std::string error() {
    MutexLock lock(&mutex_);
    return error_;
  }
  bool no_such_log() {
    MutexLock lock(&mutex_);
    return no_such_log_;
  }
  void Hold(bool held, bool gone) {
    MutexLock lock(&mutex_);
    held_ = held;
    gone_ = gone;
    changed_.SignalAll();
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  bool held_ ABSL_GUARDED_BY(mutex_) = false;
  bool gone_ ABSL_GUARDED_BY(mutex_) = false;
  int ended_ ABSL_GUARDED_BY(mutex_) = 0;
  int refused_ ABSL_GUARDED_BY(mutex_) = 0;  // Messages after the stream had ended.
  std::string error_ ABSL_GUARDED_BY(mutex_);
  bool no_such_log_ ABSL_GUARDED_BY(mutex_) = false;
  std::string text_ ABSL_GUARDED_BY(mutex_);
  std::vector<int64_t> steps_ ABSL_GUARDED_BY(mutex_);  // Step of each line.
};

inline void Write(const UniqueFd& log, const std::string& text) {
  ASSERT_EQ(write(log.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
}

inline v1::ReadLogs Ask(int rank, bool follow = false) {
  v1::ReadLogs ask;
  ask.set_request(1);
  ask.set_job_id("job");
  ask.set_attempt(2);
  ask.set_rank(rank);
  ask.set_follow(follow);
  return ask;
}

class LogKeeperCase : public testing::Test {
 protected:
  UniqueFd Open(const RankId& id) {
    absl::StatusOr<UniqueFd> log = keeper_.OpenForRank(id);
    EXPECT_TRUE(log.ok()) << log.status();
    return log.ok() ? *std::move(log) : UniqueFd();
  }

  TempDir dir_;
  LogReader reader_;
  LogKeeper keeper_{dir_.path(), [this](v1::LogLines lines) { return reader_.Take(std::move(lines)); }};
};

}  // namespace fsdpd
