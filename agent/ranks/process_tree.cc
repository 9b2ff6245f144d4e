#include "agent/ranks/process_tree.h"

#include <absl/strings/match.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>
#include <absl/time/clock.h>
#include <absl/time/time.h>
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <set>

#include "agent/ranks/pidfd.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/errno_status.h"
#include "base/process/text_files.h"
#include "base/unique_fd.h"

namespace fsdpd {
namespace {

// Longest time of the part of execve in which a process has no environment: it reads the first pages of the
// new program.
constexpr absl::Duration kLongestExec = absl::Seconds(1);

// Reads the environment. It is empty during execve, so an empty result is read again.
std::string ReadEnvironment(pid_t pid) {
  const std::string directory = absl::StrCat("/proc/", pid);
  const absl::Time deadline = Clock::Real()->Now() + kLongestExec;
  for (int seen_empty = 0;;) {
    std::string environment = ReadText(directory + "/environ");
    char image;  // Zombies, kernel threads and exited processes have no executable.
    if (!environment.empty() || readlink((directory + "/exe").c_str(), &image, 1) < 0) return environment;
    ProcessFacts facts;
    seen_empty = ReadProcessFacts(pid, &facts) && facts.empty_environment ? seen_empty + 1 : 0;
    // A single empty result may be the moment in which the kernel fills a new environment.
    if (seen_empty == 2 || Clock::Real()->Now() > deadline) return environment;
    absl::SleepFor(absl::Microseconds(200));
  }
}

}  // namespace

const char kRankMark[] = "FSDPD_RANK";

bool ParseProcStat(absl::string_view line, ProcessFacts* facts) {
  // "PID (name) STATE PPID PGRP SESSION ...": the name may contain spaces and parentheses, so it ends at the
  // last ") ".
  const size_t open = line.find(" ("), close = line.rfind(") ");
  if (open == absl::string_view::npos || close == absl::string_view::npos || close < open) return false;
  const std::vector<absl::string_view> fields = absl::StrSplit(line.substr(close + 2), ' ');
  // Fields 20, 22, 50 and 51 of proc(5), whose field 3 is fields[0].
  constexpr size_t kThreads = 17, kStartTicks = 19, kEnvironmentBegin = 47, kEnvironmentEnd = 48;
  if (fields.size() <= kStartTicks || fields[0].size() != 1) return false;
  facts->state = fields[0][0];
  facts->empty_environment = fields.size() > kEnvironmentEnd && fields[kEnvironmentEnd] != "0" &&
                             fields[kEnvironmentBegin] == fields[kEnvironmentEnd];
  return absl::SimpleAtoi(line.substr(0, open), &facts->pid) && absl::SimpleAtoi(fields[1], &facts->parent) &&
         absl::SimpleAtoi(fields[2], &facts->group) && absl::SimpleAtoi(fields[3], &facts->session) &&
         absl::SimpleAtoi(fields[kThreads], &facts->threads) &&
         absl::SimpleAtoi(fields[kStartTicks], &facts->start_ticks);
}

bool ReadProcessFacts(pid_t pid, ProcessFacts* facts) {
  return ParseProcStat(ReadText(absl::StrCat("/proc/", pid, "/stat")), facts);
}

absl::StatusOr<std::vector<ProcessFacts>> ReadProcessTable() {
  std::unique_ptr<DIR, int (*)(DIR*)> proc(opendir("/proc"), closedir);
  if (proc == nullptr) return ErrnoStatus("/proc");
  std::vector<ProcessFacts> table;
  while (const dirent* entry = readdir(proc.get())) {
    pid_t pid = 0;
    ProcessFacts facts;
    if (absl::SimpleAtoi(entry->d_name, &pid) && ReadProcessFacts(pid, &facts)) table.push_back(facts);
  }
  return table;
}

std::string ReadRankMark(pid_t pid) {
  const std::string environment = ReadEnvironment(pid);
  const std::string prefix = absl::StrCat(kRankMark, "=");
  for (absl::string_view variable : absl::StrSplit(environment, '\0')) {
    if (absl::StartsWith(variable, prefix)) return std::string(variable.substr(prefix.size()));
  }
  return "";
}

std::vector<ProcessFacts> SelectTree(const std::vector<ProcessFacts>& table, pid_t root,
                                     const std::vector<pid_t>& adopted) {
  std::set<pid_t> members(adopted.begin(), adopted.end());
  for (const ProcessFacts& p : table) {
    if (p.pid == root || p.group == root || p.session == root) members.insert(p.pid);
  }
  // Parents may come after their children in the table, so repeat until nothing is added.
  for (size_t before = 0; before != members.size();) {
    before = members.size();
    for (const ProcessFacts& p : table) {
      if (members.count(p.parent) != 0) members.insert(p.pid);
    }
  }
  std::vector<ProcessFacts> tree;
  for (const ProcessFacts& p : table) {
    if (members.count(p.pid) != 0) tree.push_back(p);
  }
  return tree;
}

absl::StatusOr<std::vector<ProcessFacts>> ReadTree(pid_t root, absl::string_view mark,
                                                   const std::vector<ProcessFacts>& before) {
  FSDPD_ASSIGN_OR_RETURN(const std::vector<ProcessFacts> table, ReadProcessTable());
  std::vector<pid_t> adopted;
  for (const ProcessFacts& p : table) {
    const bool known = std::any_of(before.begin(), before.end(), [&p](const ProcessFacts& b) {
      return b.pid == p.pid && b.start_ticks == p.start_ticks;
    });
    const bool marked = p.parent == getpid() && p.pid != root && ReadRankMark(p.pid) == mark;
    if (known || marked) adopted.push_back(p.pid);
  }
  return SelectTree(table, root, adopted);
}

void SignalProcess(const ProcessFacts& process, int signal) {
  const UniqueFd pidfd(PidfdOpen(process.pid));
  if (!pidfd.valid()) return;  // Exited.
  // The pidfd refers to the current owner of the pid; the start time shows whether that is the intended
  // process.
  ProcessFacts now;
  if (!ReadProcessFacts(process.pid, &now) || now.start_ticks != process.start_ticks) return;
  PidfdSendSignal(pidfd.get(), signal);
}

}  // namespace fsdpd
