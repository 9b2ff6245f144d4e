// Who belongs to a rank's process tree, read from /proc. It owns one decision: which processes of this
// machine may be signalled on behalf of a rank.
//
// A process belongs to the tree of a rank when one of these holds:
//   1. its session or process group is the rank's (the rank leads both);
//   2. its parent belongs to the tree;
//   3. this process adopted it (as child subreaper) and its environment still carries the rank's mark:
//      that is how a grandchild is found that called setsid and whose parent is gone.
// What escapes: a process that called setsid, outlived its parent and wiped its own environment. Only a
// cgroup would hold it, and those need rights that an agent does not always have.
//
// The rank must be alive or an unreaped zombie while its tree is read: only then can its number not have been
// given to another process, group or session.
#pragma once

#include <absl/status/statusor.h>
#include <absl/strings/string_view.h>
#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

namespace fsdpd {

struct ProcessFacts {
  pid_t pid = 0;
  pid_t parent = 0;
  pid_t group = 0;
  pid_t session = 0;
  char state = '?';  // As in /proc/PID/stat; 'Z' is a zombie.
  int threads = 0;
  uint64_t start_ticks = 0;  // With pid, names a process for all time.
  // It was given no variables. In the middle of execve a process has none either, and this is false.
  bool empty_environment = false;

  // Its first thread may be a zombie while others still hold memory and devices.
  bool alive() const { return state != 'Z' || threads > 1; }
};

// One line of /proc/PID/stat. False when it is not one.
bool ParseProcStat(absl::string_view line, ProcessFacts* facts);
// False when there is no such process.
bool ReadProcessFacts(pid_t pid, ProcessFacts* facts);

// All processes that can be seen. Those that end meanwhile are left out.
absl::StatusOr<std::vector<ProcessFacts>> ReadProcessTable();

// The environment variable that marks all descendants of a rank, and its value in a process's environment
// ("" when it has none or may not be read). Waits for an execve that is under way.
extern const char kRankMark[];
std::string ReadRankMark(pid_t pid);

// The tree of `root`, root included, zombies too. `adopted` are those of rules 3 and 4.
std::vector<ProcessFacts> SelectTree(const std::vector<ProcessFacts>& table, pid_t root,
                                     const std::vector<pid_t>& adopted);

// Reads the table and applies rules 1-4; `mark` is the value that the rank was started with, `before` what an
// earlier call gave.
absl::StatusOr<std::vector<ProcessFacts>> ReadTree(pid_t root, absl::string_view mark,
                                                   const std::vector<ProcessFacts>& before);

// Signals exactly this process: a later one of the same number is left alone.
void SignalProcess(const ProcessFacts& process, int signal);

}  // namespace fsdpd
