#include "agent/ranks/process_tree.h"

#include <absl/time/clock.h>
#include <absl/time/time.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

namespace fsdpd {
namespace {

ProcessFacts Process(pid_t pid, pid_t parent, pid_t group, pid_t session) {
  ProcessFacts facts;
  facts.pid = pid;
  facts.parent = parent;
  facts.group = group;
  facts.session = session;
  return facts;
}

std::vector<pid_t> Pids(const std::vector<ProcessFacts>& processes) {
  std::vector<pid_t> pids;
  for (const ProcessFacts& p : processes) pids.push_back(p.pid);
  return pids;
}

TEST(ParseProcStat, AcceptsNamesWithSpacesAndParentheses) {
  ProcessFacts facts;
  ASSERT_TRUE(
      ParseProcStat("42 (a) b (c) S 7 41 40 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 6 0 98765 10 20 30", &facts));
  EXPECT_EQ(facts.pid, 42);
  EXPECT_EQ(facts.state, 'S');
  EXPECT_EQ(facts.parent, 7);
  EXPECT_EQ(facts.group, 41);
  EXPECT_EQ(facts.session, 40);
  EXPECT_EQ(facts.threads, 6);
  EXPECT_EQ(facts.start_ticks, 98765u);
}

TEST(ParseProcStat, RejectsMalformedLines) {
  ProcessFacts facts;
  for (const char* bad :
       {"", "42", "42 (x)", "42 (x) S 1 2", ") 42 (", "x (x) S 7 41 40 0 -1 0 1 2 3 4 5 6 7 8 20 0 1 0 9"}) {
    EXPECT_FALSE(ParseProcStat(bad, &facts)) << bad;
  }
}

TEST(ProcessFacts, ZombieLeaderWithThreadsIsAlive) {
  ProcessFacts facts;
  facts.state = 'Z';
  facts.threads = 2;
  EXPECT_TRUE(facts.alive());
  facts.threads = 1;
  EXPECT_FALSE(facts.alive());
}

TEST(SelectTree, FindsGroupSessionDescendantsAndAdopted) {
  const std::vector<ProcessFacts> table = {
      Process(20, 19, 20, 20),  // grandchild in its own session, listed before its parent
      Process(19, 10, 10, 10),  // child
      Process(10, 1, 10, 10),   // the rank
      Process(30, 1, 30, 10),   // same session, other group, orphaned
      Process(40, 1, 40, 40),   // adopted by mark
      Process(41, 40, 40, 40),  // child of the adopted one
      Process(50, 1, 50, 50),   // unrelated
  };
  EXPECT_EQ(Pids(SelectTree(table, 10, {40})), (std::vector<pid_t>{20, 19, 10, 30, 40, 41}));
  EXPECT_TRUE(SelectTree({Process(50, 1, 50, 50)}, 10, {}).empty());
}

TEST(ReadProcessTable, SeesThisProcess) {
  const auto table = ReadProcessTable();
  ASSERT_TRUE(table.ok()) << table.status();
  bool found = false;
  for (const ProcessFacts& p : *table) found |= p.pid == getpid() && p.parent == getppid();
  EXPECT_TRUE(found);
}

TEST(ReadRankMark, WaitsForPendingExecve) {
  const pid_t child = fork();
  if (child == 0) {
    setenv(kRankMark, "job/1/0", 1);
    execl("/bin/sh", "sh", "-c", "exec \"$0\" -c \"$1\" \"$0\" \"$1\"", "/bin/sh",
          "exec \"$0\" -c \"$1\" \"$0\" \"$1\"", nullptr);
    _exit(127);
  }
  ASSERT_GT(child, 0);
  while (ReadRankMark(child).empty()) absl::SleepFor(absl::Milliseconds(1));  // Waits for its first execve.
  for (int i = 0; i < 2000; ++i) ASSERT_EQ(ReadRankMark(child), "job/1/0") << "read " << i;
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
}

TEST(ReadRankMark, IsEmptyWithoutMarkAndForExitedProcesses) {
  EXPECT_EQ(ReadRankMark(getpid()), "");
  const pid_t bare = fork();
  if (bare == 0) {
    char* const arguments[] = {const_cast<char*>("sleep"), const_cast<char*>("1000"), nullptr};
    char* const none[] = {nullptr};
    execve("/bin/sleep", arguments, none);
    _exit(127);
  }
  EXPECT_EQ(ReadRankMark(bare), "");
  kill(bare, SIGKILL);
  EXPECT_EQ(ReadRankMark(bare), "");
  waitpid(bare, nullptr, 0);
  EXPECT_EQ(ReadRankMark(bare), "");
}

}  // namespace
}  // namespace fsdpd
