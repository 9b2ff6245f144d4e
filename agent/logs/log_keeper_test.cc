#include "agent/logs/log_keeper.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "agent/logs/job_directories.h"
#include "base/limits.h"
#include "base/rank/log_gap.h"
#include "base/rank/trace_file.h"
#include "base/temp_dir.h"

namespace {

// Number of entries after which listing a directory fails, as on a network file system; < 0: never.
std::atomic<int> listing_fails_after{-1};

}  // namespace

extern "C" dirent* readdir(DIR* directory) {
  static const auto real = reinterpret_cast<dirent* (*)(DIR*)>(dlsym(RTLD_NEXT, "readdir"));
  if (listing_fails_after < 0 || listing_fails_after-- > 0) return real(directory);
  errno = EIO;
  return nullptr;
}

namespace fsdpd {
namespace {

const RankId kRank{{"job", 2}, 3};

// Delivered messages; `Release` unblocks a slow reader.
class Reader {
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

void Write(const UniqueFd& log, const std::string& text) {
  ASSERT_EQ(write(log.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
}

v1::ReadLogs Ask(int rank, bool follow = false) {
  v1::ReadLogs ask;
  ask.set_request(1);
  ask.set_job_id("job");
  ask.set_attempt(2);
  ask.set_rank(rank);
  ask.set_follow(follow);
  return ask;
}

class LogKeeperTest : public testing::Test {
 protected:
  UniqueFd Open(const RankId& id) {
    absl::StatusOr<UniqueFd> log = keeper_.OpenForRank(id);
    EXPECT_TRUE(log.ok()) << log.status();
    return log.ok() ? *std::move(log) : UniqueFd();
  }

  TempDir dir_;
  Reader reader_;
  LogKeeper keeper_{dir_.path(), [this](v1::LogLines lines) { return reader_.Take(std::move(lines)); }};
};

TEST_F(LogKeeperTest, StoresLogsByJobAttemptAndRank) {
  const UniqueFd log = Open(kRank);
  Write(log, "hello\n");
  EXPECT_EQ(keeper_.PathOf(kRank), dir_.path() + "/job/attempt-2/rank-3.log");
  EXPECT_TRUE(std::filesystem::exists(keeper_.PathOf(kRank)));
  EXPECT_EQ(keeper_.Tail(kRank, 5), std::vector<std::string>{"hello"});
  EXPECT_TRUE(keeper_.Tail({{"job", 2}, 4}, 5).empty());
}

TEST_F(LogKeeperTest, ReadsAllRanksInOrder) {
  for (const int rank : {10, 2}) {
    const UniqueFd log = Open({{"job", 2}, rank});
    Write(log, "a\nb");
    keeper_.RankEnded({{"job", 2}, rank});
  }
  keeper_.Read(Ask(-1));
  EXPECT_EQ(reader_.AwaitEnd(), "2:a\n10:a\n2:b\n10:b\n");
}

TEST_F(LogKeeperTest, FollowEndsWithTheRank) {
  const UniqueFd log = Open(kRank);
  Write(log, "one\n");
  keeper_.Read(Ask(3, /*follow=*/true));
  Write(log, "two\nthr");
  Write(log, "ee\n");
  keeper_.RankEnded(kRank);
  EXPECT_EQ(reader_.AwaitEnd(), "3:one\n3:two\n3:three\n");
}

TEST_F(LogKeeperTest, ReadersGetNoticesOfLostOutput) {
  // The write probe, replaced so that writes to it fail like on a full disk.
  std::filesystem::create_symlink("/dev/full", dir_.File(".write-probe"));
  const UniqueFd log = Open(kRank);
  Write(log, "one\n");
  keeper_.Read(Ask(3, /*follow=*/true));
  reader_.AwaitText("3:one\n3![fsdpd-agent: output of the rank is being lost: ");
  EXPECT_NE(keeper_.Tail(kRank, 5).back().find("is being lost"), std::string::npos);
  std::filesystem::remove(dir_.File(".write-probe"));
  reader_.AwaitText("3:[fsdpd-agent: lines are missing here, ");
  Write(log, "two\n");
  keeper_.RankEnded(kRank);
  const std::string text = reader_.AwaitEnd();
  EXPECT_EQ(text.substr(text.size() - 6), "3:two\n");
}

TEST_F(LogKeeperTest, DetectsRemovedLogsWhenTheyAreRead) {
  const UniqueFd log = Open(kRank);
  Write(log, "one\n");
  std::filesystem::remove_all(dir_.path() + "/job");
  while (keeper_.Tail(kRank, 5).empty()) std::this_thread::yield();
  keeper_.RankEnded(kRank);
  keeper_.Read(Ask(-1));
  EXPECT_EQ(reader_.AwaitEnd().find("3:[fsdpd-agent: the log file was removed or replaced"), 0u);
  EXPECT_EQ(keeper_.Tail(kRank, 5).size(), 1u) << "reported once";
}

v1::ReadLogs AskForTraces(int64_t first, int64_t last, int rank = -1) {
  v1::ReadLogs ask = Ask(rank);
  ask.mutable_traces()->set_first(first);
  ask.mutable_traces()->set_last(last);
  return ask;
}

// Limits each log to its newest MiB.
class BoundedLogKeeperTest : public testing::Test {
 protected:
  // Returns once the excess was dropped.
  void WriteAndAwaitDrop(int lines) {
    std::string text;
    for (int i = 0; i < lines; ++i) text += "line " + std::to_string(lines_++) + std::string(90, '.') + "\n";
    Write(log_, text);
    written_ += static_cast<int64_t>(text.size());
    while (FrontOf(keeper_.PathOf(kRank)).bytes < written_ - kBound) std::this_thread::yield();
  }
  // Number of lines that were delivered or reported as dropped; checks the position of each.
  int64_t Account(const std::string& delivered) {
    int64_t next = 0;
    std::istringstream text(delivered);
    for (std::string line; std::getline(text, line);) {
      if (line[1] == '!') {
        EXPECT_GT(LinesOfLogGap(line.substr(2)), 0) << line;
        next += LinesOfLogGap(line.substr(2));
      } else {
        // A line may be delivered incomplete if its end was dropped.
        if (line != "3:line") {
          EXPECT_EQ(line.substr(0, line.find('.')), "3:line " + std::to_string(next));
        }
        ++next;
      }
    }
    return next;
  }

  static constexpr int64_t kBound = 1 << 20;
  TempDir dir_;
  Reader reader_;
  LogKeeper keeper_{dir_.path(), [this](v1::LogLines lines) { return reader_.Take(std::move(lines)); },
                    nullptr, nullptr, kBound};
  const UniqueFd log_ = keeper_.OpenForRank(kRank).value();
  int lines_ = 0;
  int64_t written_ = 0;
};

TEST_F(BoundedLogKeeperTest, NoticeOfDroppedDataPrecedesTheRest) {
  WriteAndAwaitDrop(40000);
  keeper_.RankEnded(kRank);
  keeper_.Read(Ask(3));
  const std::string text = reader_.AwaitEnd();
  EXPECT_EQ(text.substr(0, 2), "3!");
  EXPECT_EQ(std::count(text.begin(), text.end(), '!'), 1);
  EXPECT_EQ(Account(text), 40000);
}

TEST_F(BoundedLogKeeperTest, OvertakenFollowerGetsANoticeAndContinues) {
  keeper_.Read(Ask(3, /*follow=*/true));
  Write(log_, "line 0.\nline");
  reader_.AwaitText("3:line 0.");
  reader_.Hold(true, /*gone=*/false);
  Write(log_, " 1.\n");
  lines_ = 2;
  WriteAndAwaitDrop(40000);
  WriteAndAwaitDrop(20000);
  reader_.Hold(false, /*gone=*/false);
  keeper_.RankEnded(kRank);
  const std::string text = reader_.AwaitEnd();
  EXPECT_GE(std::count(text.begin(), text.end(), '!'), 1);
  EXPECT_EQ(Account(text), 60002);
}

TEST_F(BoundedLogKeeperTest, TailWithFewerLinesHasANotice) {
  WriteAndAwaitDrop(40000);
  keeper_.RankEnded(kRank);
  EXPECT_EQ(keeper_.Tail(kRank, 1), std::vector<std::string>{"line 39999" + std::string(90, '.')});
  v1::ReadLogs ask = Ask(3);
  ask.set_tail_lines(2);
  keeper_.Read(ask);
  const std::string few = reader_.AwaitEnd();
  EXPECT_EQ(std::count(few.begin(), few.end(), '\n'), 2) << few;
  EXPECT_EQ(few.find('!'), std::string::npos) << few;
  ask.set_tail_lines(30000);
  keeper_.Read(ask);
  const std::string all = reader_.AwaitEnds(2).substr(few.size());
  EXPECT_EQ(all.substr(0, 2), "3!");
  EXPECT_EQ(Account(all), 40000);
}

TEST_F(BoundedLogKeeperTest, TruncatedLogAfterADropHasATail) {
  WriteAndAwaitDrop(40000);
  ASSERT_EQ(ftruncate(log_.get(), 0), 0);
  EXPECT_TRUE(keeper_.Tail(kRank, 40).empty());
  Write(log_, "after\n");
  EXPECT_EQ(keeper_.Tail(kRank, 40), std::vector<std::string>{"after"});
  keeper_.RankEnded(kRank);
  keeper_.Read(Ask(3));
  EXPECT_EQ(reader_.AwaitEnd(), "3:after\n");
}

TEST_F(BoundedLogKeeperTest, FollowContinuesAfterTruncation) {
  keeper_.Read(Ask(3, /*follow=*/true));
  WriteAndAwaitDrop(40000);
  reader_.AwaitText("line 39999");
  ASSERT_EQ(ftruncate(log_.get(), 0), 0);
  reader_.AwaitText("3![fsdpd-agent: the log was truncated here]");
  Write(log_, "after\n");
  reader_.AwaitText("3:after");
  keeper_.RankEnded(kRank);
  reader_.AwaitEnd();
}

// Regression: the first line and a half were delivered again, the half one joined with the next line.
TEST_F(LogKeeperTest, FollowOfAPartlyTruncatedLogGetsNewContent) {
  const UniqueFd log = Open(kRank);
  keeper_.Read(Ask(3, /*follow=*/true));
  Write(log, "one\ntwo\nthree\n");
  reader_.AwaitText("three\n");
  ASSERT_EQ(ftruncate(log.get(), 6), 0);
  reader_.AwaitText("truncated here]\n");
  Write(log, "after\n");
  keeper_.RankEnded(kRank);
  EXPECT_EQ(reader_.AwaitEnd(),
            "3:one\n3:two\n3:three\n3![fsdpd-agent: the log was truncated here]\n3:after\n");
}

// Regression: no notice was sent, and then the rest of a line from the middle.
TEST_F(LogKeeperTest, FollowDetectsTruncationOfALogThatGrewAgain) {
  const UniqueFd log = Open(kRank);
  Write(log, "one\ntwo\nthree\n");
  v1::ReadLogs ask = Ask(3, /*follow=*/true);
  ask.set_window_bytes(LogLineCost(3) + LogLineCost(3) + 1);  // Used up by the third line.
  keeper_.Read(ask);
  reader_.AwaitText("three\n");
  ASSERT_EQ(ftruncate(log.get(), 6), 0);
  Write(log, "o\nthis is longer than what was there\n");
  keeper_.RankEnded(kRank);
  v1::LogGrant grant;
  grant.set_request(ask.request());
  grant.set_bytes(1 << 20);
  keeper_.Grant(grant);
  EXPECT_EQ(reader_.AwaitEnd(),
            "3:one\n3:two\n3:three\n3![fsdpd-agent: the log was truncated here]\n"
            "3:this is longer than what was there\n");
}

// Grew to its earlier size again, up to the same place in a line.
TEST_F(LogKeeperTest, RewrittenLogIsReadFromItsBeginning) {
  const UniqueFd log = Open(kRank);
  keeper_.Read(Ask(3, /*follow=*/true));
  Write(log, "one\ntwo\n");
  reader_.AwaitText("two\n");
  ASSERT_EQ(ftruncate(log.get(), 0), 0);
  reader_.AwaitText("truncated here]\n");
  Write(log, "one more\n");
  keeper_.RankEnded(kRank);
  EXPECT_EQ(reader_.AwaitEnd(), "3:one\n3:two\n3![fsdpd-agent: the log was truncated here]\n3:one more\n");
}

TEST_F(LogKeeperTest, ReadsTracesInOrder) {
  const UniqueFd log = Open(kRank);
  const std::string directory = keeper_.DirectoryOf(kRank.of);
  for (const char* name :
       {"trace_step_9_rank_3.json", "trace_step_10_rank_3.json", "trace_step_10_rank_2.json",
        "trace_step_11_rank_2.json", "trace_step_10_rank_3.json.tmp"})
    std::ofstream(directory + "/" + name) << name << "\nend\n";
  keeper_.Read(AskForTraces(9, 10));
  EXPECT_EQ(reader_.AwaitEnd(),
            "3:trace_step_9_rank_3.json\n3:end\n2:trace_step_10_rank_2.json\n2:end\n"
            "3:trace_step_10_rank_3.json\n3:end\n");
  EXPECT_EQ(reader_.steps(), (std::vector<int64_t>{9, 9, 10, 10, 10, 10}));
}

// The window is used up within the first file, and again within the second.
TEST_F(LogKeeperTest, TraceWaitsForItsReader) {
  const UniqueFd log = Open(kRank);
  const std::string line(1000, 'x');
  for (const int step : {1, 2}) {
    std::ofstream file(keeper_.DirectoryOf(kRank.of) + "/" + TraceFileName(step, 3));
    for (int i = 0; i < 100; ++i) file << line << "\n";
  }
  v1::ReadLogs ask = AskForTraces(1, 2, 3);
  ask.set_window_bytes(10 * LogLineCost(1000));
  keeper_.Read(ask);
  for (int window = 1; window <= 20; ++window) {
    EXPECT_EQ(reader_.AwaitLines(window * 10), window * 10);
    v1::LogGrant grant;
    grant.set_request(1);
    grant.set_bytes(10 * LogLineCost(1000));
    keeper_.Grant(grant);
  }
  reader_.AwaitEnd();
  const std::vector<int64_t> steps = reader_.steps();
  ASSERT_EQ(steps.size(), 200u);
  EXPECT_TRUE(std::is_sorted(steps.begin(), steps.end())) << "one file after the other";
}

// A partly read file is an error, not NOT_FOUND.
TEST_F(LogKeeperTest, FileRemovedBeforeItsTurnIsAnError) {
  const UniqueFd log = Open(kRank);
  const std::string directory = keeper_.DirectoryOf(kRank.of) + "/", line(1000, 'x');
  std::ofstream(directory + TraceFileName(1, 3)) << line << "\n" << line << "\n";
  std::ofstream(directory + TraceFileName(2, 3)) << line << "\n";
  v1::ReadLogs ask = AskForTraces(1, 2, 3);
  ask.set_window_bytes(LogLineCost(1000));
  keeper_.Read(ask);
  EXPECT_EQ(reader_.AwaitLines(1), 1);
  ASSERT_EQ(unlink((directory + TraceFileName(2, 3)).c_str()), 0);
  v1::LogGrant grant;
  grant.set_request(1);
  grant.set_bytes(10 * LogLineCost(1000));
  keeper_.Grant(grant);
  reader_.AwaitEnd();
  EXPECT_EQ(reader_.error(),
            "cannot read " + directory + TraceFileName(2, 3) + ": No such file or directory");
  EXPECT_FALSE(reader_.no_such_log());
}

TEST_F(LogKeeperTest, MissingTraceIsNotFound) {
  const UniqueFd log = Open(kRank);
  keeper_.Read(AskForTraces(1, 100));
  reader_.AwaitEnd();
  EXPECT_EQ(reader_.error(), "this node does not have the trace of job=job attempt=2");
}

TEST_F(LogKeeperTest, ReadsHangEvidence) {
  const UniqueFd log = Open(kRank);
  v1::ReadLogs ask = Ask(-1);
  ask.set_evidence(true);
  keeper_.Read(ask);
  reader_.AwaitEnd();
  EXPECT_EQ(reader_.error(), "this node has no hang evidence of job=job attempt=2");
  Write(log, "its log\n");
  for (const char* name : {"rank-3.hang.txt", "rank-2.hang.txt", "rank-4.hang.txt.part"})
    std::ofstream(keeper_.DirectoryOf(kRank.of) + "/" + name) << name << "\nend\n";
  keeper_.Read(ask);
  EXPECT_EQ(reader_.AwaitEnds(2), "2:rank-2.hang.txt\n2:end\n3:rank-3.hang.txt\n3:end\n");
  ask.set_rank(3);
  keeper_.Read(ask);
  EXPECT_EQ(reader_.AwaitEnds(3),
            "2:rank-2.hang.txt\n2:end\n3:rank-3.hang.txt\n3:end\n3:rank-3.hang.txt\n3:end\n");
}

// Of a job on two nodes the ranks of one were left out of `logs`, and nothing said why.
TEST_F(LogKeeperTest, ALogRemovedByTheWorkBoundIsANoticeAndNotNothing) {
  for (const int rank : {2, 3}) {
    Write(Open({kRank.of, rank}), "a line\n");
    keeper_.RankEnded({kRank.of, rank});
  }
  std::ofstream(keeper_.DirectoryOf(kRank.of) + "/rank-3.hang.txt") << "its threads\n";
  {
    JobDirectoriesOptions options;
    options.max_bytes = 1;
    const JobDirectories directories(dir_.path(), options,
                                     [] { return std::map<std::string, std::set<int>>(); });
    while (std::filesystem::exists(keeper_.DirectoryOf(kRank.of))) std::this_thread::yield();
  }
  const std::string of_log =
      "3![fsdpd-agent: the log of rank 3 of attempt 2 was removed: files of jobs on this node exceeded "
      "--work-mib]\n";
  keeper_.Read(Ask(3));
  EXPECT_EQ(reader_.AwaitEnd(), of_log);
  keeper_.Read(Ask(-1, /*follow=*/true));
  std::string both = of_log;
  both[0] = '2';
  both.replace(both.find("rank 3"), 6, "rank 2");
  EXPECT_EQ(reader_.AwaitEnds(2), of_log + both + of_log);
  v1::ReadLogs evidence = Ask(-1);
  evidence.set_evidence(true);
  keeper_.Read(evidence);
  EXPECT_EQ(
      reader_.AwaitEnds(3).substr(2 * of_log.size() + both.size()),
      "3![fsdpd-agent: the hang evidence of rank 3 of attempt 2 was removed: files of jobs on this node "
      "exceeded --work-mib]\n");
  EXPECT_EQ(reader_.error(), "");
}

TEST_F(LogKeeperTest, SaysWhatItCannotRead) {
  keeper_.Read(Ask(3));
  reader_.AwaitEnd();
  EXPECT_EQ(reader_.error(), "this node has no log of job=job attempt=2 rank=3");
}

TEST_F(LogKeeperTest, ReportsUnreadableLogs) {
  const UniqueFd log = Open(kRank);
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none = {3, before.rlim_max};  // All descriptors are in use.
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  keeper_.Read(Ask(3));
  reader_.AwaitEnd();
  const std::string one = reader_.error();
  keeper_.Read(Ask(-1));
  reader_.AwaitEnds(2);
  const std::string both = reader_.error();
  const absl::Status unopened = keeper_.OpenForRank({{"job", 2}, 4}).status();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  const std::string why = ": Too many open files, of 3 that this process may have open (ulimit -n)";
  EXPECT_EQ(one, "cannot read " + keeper_.PathOf(kRank) + why);
  EXPECT_EQ(both, one + "cannot list " + dir_.path() + "/job/attempt-2" + why);
  EXPECT_EQ(std::string(unopened.message()), "/dev/null" + why);
}

TEST_F(LogKeeperTest, SendsNoMoreThanTheWindow) {
  const UniqueFd log = Open(kRank);
  for (const char* line : {"one\n", "two\n", "three\n", "four\n"}) Write(log, line);
  keeper_.RankEnded(kRank);
  v1::ReadLogs ask = Ask(3);
  ask.set_window_bytes(LogLineCost(3) + 1);  // Used up by the second line, which is sent.
  keeper_.Read(ask);
  reader_.AwaitText("3:two\n");
  // Another request is served to its end meanwhile: the first one does not block it.
  v1::ReadLogs other = Ask(3);
  other.set_request(2);
  keeper_.Read(other);
  EXPECT_EQ(reader_.AwaitEnd(), "3:one\n3:two\n3:one\n3:two\n3:three\n3:four\n");
  v1::LogGrant grant;
  grant.set_request(1);
  grant.set_bytes(10 * LogLineCost(5));
  keeper_.Grant(grant);
  EXPECT_EQ(reader_.AwaitEnds(2), "3:one\n3:two\n3:one\n3:two\n3:three\n3:four\n3:three\n3:four\n");
  // A grant for an ended request is ignored.
  keeper_.Grant(grant);
  other.set_request(3);
  keeper_.Read(other);
  reader_.AwaitEnds(3);
  EXPECT_EQ(reader_.error(), "");
}

TEST_F(LogKeeperTest, RanksTakeTurnsInASmallWindow) {
  for (const int rank : {1, 2, 3}) {
    const UniqueFd log = Open({{"job", 2}, rank});
    Write(log, "a\nb\n");
    keeper_.RankEnded({{"job", 2}, rank});
  }
  v1::ReadLogs ask = Ask(-1);
  ask.set_window_bytes(LogLineCost(1));
  keeper_.Read(ask);
  v1::LogGrant grant;
  grant.set_request(1);
  grant.set_bytes(LogLineCost(1));
  std::string expected = "1:a\n";
  EXPECT_EQ(reader_.AwaitText(expected), expected);
  for (const char* next : {"2:a\n", "3:a\n", "1:b\n", "2:b\n", "3:b\n"}) {
    keeper_.Grant(grant);
    expected += next;
    EXPECT_EQ(reader_.AwaitText(next), expected);
  }
  keeper_.Grant(grant);
  EXPECT_EQ(reader_.AwaitEnd(), expected);
}

// The files are changed after the point to which a reader with a window may read ahead.
TEST_F(LogKeeperTest, ReadsNoMoreThanTheWindow) {
  const std::string lines(1000, 'x');
  std::string before;
  for (int line = 0; line < 100; ++line) before += lines + "\n";
  for (const int rank : {1, 2}) {
    const UniqueFd log = Open({{"job", 2}, rank});
    Write(log, before);
    keeper_.RankEnded({{"job", 2}, rank});
  }
  v1::ReadLogs ask = Ask(-1);
  ask.set_window_bytes(LogLineCost(1000));
  keeper_.Read(ask);
  reader_.AwaitText("1:x");
  // When this is answered, the first request has had its turn at both files.
  v1::ReadLogs other = Ask(1);
  other.set_request(2);
  other.set_tail_lines(1);
  keeper_.Read(other);
  reader_.AwaitEnd();
  for (const int rank : {1, 2}) {
    const UniqueFd log(open(keeper_.PathOf({{"job", 2}, rank}).c_str(), O_WRONLY | O_CLOEXEC));
    const off_t from = rank == 1 ? kMaxLogLineBytes : 0;
    ASSERT_EQ(pwrite(log.get(), "new", 3, from), 3);
  }
  v1::LogGrant grant;
  grant.set_request(1);
  grant.set_bytes(1 << 20);
  keeper_.Grant(grant);
  const std::string text = reader_.AwaitEnds(2);
  EXPECT_NE(text.find("2:newx"), std::string::npos) << "rank 2 was read ahead of its turn";
  EXPECT_NE(text.find("xnewx"), std::string::npos) << "rank 1 was read beyond its window";
}

TEST_F(LogKeeperTest, ReportsReadErrorInALog) {
  // A directory: open() succeeds and read() fails.
  std::filesystem::create_directories(keeper_.PathOf(kRank));
  keeper_.Read(Ask(3));
  reader_.AwaitEnd();
  EXPECT_EQ(reader_.error(), "cannot read " + keeper_.PathOf(kRank) + ": Is a directory");
}

TEST_F(LogKeeperTest, ListingErrorEndsTheRequestOnly) {
  for (const int rank : {1, 2, 3}) Write(Open({{"job", 2}, rank}), "one\n");
  listing_fails_after = 3;  // Of five entries, with "." and "..".
  keeper_.Read(Ask(-1));
  reader_.AwaitEnd();
  listing_fails_after = -1;
  EXPECT_EQ(reader_.error(), "cannot list " + dir_.path() + "/job/attempt-2: Input/output error");
}

TEST_F(LogKeeperTest, DropAllCancelsRequestsBeingOpened) {
  Write(Open(kRank), "one\n");
  keeper_.RankEnded(kRank);
  // Requests for rank 9 fail, which calls back while requests of the same turn are being opened.
  const auto ask_for = [](int64_t request, int rank) {
    v1::ReadLogs ask = Ask(rank);
    ask.set_request(request);
    return ask;
  };
  std::unique_ptr<LogKeeper> keeper;
  Reader reader;
  const auto deliver = [&](v1::LogLines lines) {
    const int64_t request = lines.request();
    if (request == 1) {
      keeper->Read(ask_for(2, 9));
      keeper->Read(ask_for(3, kRank.rank));
    } else if (request == 2) {
      keeper->DropAll();
      keeper->Read(ask_for(4, 9));
    }
    return reader.Take(std::move(lines));
  };
  keeper = std::make_unique<LogKeeper>(dir_.path(), deliver);
  keeper->Read(ask_for(1, 9));
  EXPECT_EQ(reader.AwaitEnds(3), "");
}

TEST_F(LogKeeperTest, LostReaderEndsItsRequestOnly) {
  const UniqueFd log = Open(kRank);
  Write(log, "one\n");
  reader_.Hold(/*held=*/true, /*gone=*/false);
  keeper_.Read(Ask(3, /*follow=*/true));
  Write(log, "two\n");  // Ranks do not wait for readers.
  reader_.Hold(/*held=*/false, /*gone=*/true);
  reader_.AwaitRefused();
  reader_.Hold(/*held=*/false, /*gone=*/false);
  v1::ReadLogs other = Ask(3);
  other.set_request(2);
  keeper_.RankEnded(kRank);
  keeper_.Read(other);
  EXPECT_EQ(reader_.AwaitEnd(), "3:one\n3:two\n") << "lines of the first request are not sent again";
}

TEST_F(LogKeeperTest, PrepareCreatesTheDirectoryOrFails) {
  EXPECT_TRUE(LogKeeper::Prepare(dir_.File("new/deep")).ok());
  const absl::Status status = LogKeeper::Prepare("/proc/new").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(std::string(status.message()).rfind("--work-dir /proc/new: cannot be created: ", 0), 0u)
      << status;
}

TEST_F(LogKeeperTest, PrepareFailsIfAnotherAgentHoldsTheLock) {
  const std::string directory = dir_.File("work");
  {
    const absl::StatusOr<UniqueFd> first = LogKeeper::Prepare(directory);
    ASSERT_TRUE(first.ok()) << first.status();
    const absl::Status second = LogKeeper::Prepare(directory).status();
    EXPECT_EQ(second.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(std::string(second.message()), "--work-dir " + directory + ": locked by another agent (pid " +
                                                 std::to_string(getpid()) +
                                                 "); use a different directory [WORK_DIR_IN_USE]");
  }
  EXPECT_TRUE(LogKeeper::Prepare(directory).ok()) << "it has ended";
}

}  // namespace
}  // namespace fsdpd
