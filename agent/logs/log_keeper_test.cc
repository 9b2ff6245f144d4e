#include "agent/logs/log_keeper.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <thread>

#include "agent/logs/job_directories.h"
#include "agent/testing/log_keeper_case.h"
#include "base/limits.h"

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

using LogKeeperTest = LogKeeperCase;

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
  LogReader reader;
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
