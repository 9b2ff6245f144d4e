// The process tree of a rank, read from /proc. It owns one decision: which processes of this machine may be
// signalled on behalf of a rank.
//
// A process belongs to the tree of a rank if one of these holds:
//   1. its session or process group is that of the rank (the rank leads both);
//   2. its parent belongs to the tree;
//   3. this process adopted it (as child subreaper) and its environment still contains the mark of the rank:
//      this finds a grandchild that called setsid and whose parent has exited;
//   4. an earlier call found it in the tree.
// Not found: a process that called setsid, outlived its parent and cleared its environment before the tree
// was read. Only a cgroup would contain it, which needs privileges that an agent does not always have.
//
// The rank must be alive or an unreaped zombie while its tree is read: only then can its pid not have been
// reused for another process, group or session.
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
  uint64_t start_ticks = 0;  // Identifies a process together with its pid.
  // It was started with an empty environment. False during execve, when the environment is temporarily empty.
  bool empty_environment = false;

  // The main thread may be a zombie while other threads still hold memory and devices.
  bool alive() const { return state != 'Z' || threads > 1; }
};

// Parses /proc/PID/stat; false if `line` is malformed.
bool ParseProcStat(absl::string_view line, ProcessFacts* facts);
// False if the process does not exist.
bool ReadProcessFacts(pid_t pid, ProcessFacts* facts);

// All visible processes, except those that exit meanwhile.
absl::StatusOr<std::vector<ProcessFacts>> ReadProcessTable();

// The environment variable that marks all descendants of a rank, and its value for a process ("" if it has
// none or it cannot be read). Waits for a pending execve.
extern const char kRankMark[];
std::string ReadRankMark(pid_t pid);

// The tree of `root`, including root and zombies. `adopted`: processes found by rules 3 and 4.
std::vector<ProcessFacts> SelectTree(const std::vector<ProcessFacts>& table, pid_t root,
                                     const std::vector<pid_t>& adopted);

// Reads the process table and applies rules 1-4. `mark`: value with which the rank was started. `before`:
// result of an earlier call.
absl::StatusOr<std::vector<ProcessFacts>> ReadTree(pid_t root, absl::string_view mark,
                                                   const std::vector<ProcessFacts>& before);

// Signals exactly this process, never a later one with the same pid.
void SignalProcess(const ProcessFacts& process, int signal);

}  // namespace fsdpd
