// How much memory, and how many processes and threads, the control groups of this process allow it: among its
// own group and those above, as each of them binds. Pods, systemd's MemoryMax and TasksMax, and Slurm set
// limits at different depths, in both versions of the kernel's interface. `root` stands before /proc and
// /sys, for tests.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace fsdpd {

// The smallest; empty when nothing limits it.
std::optional<int64_t> CgroupMemoryLimit(const std::string& root = "");

struct CgroupMemory {
  int64_t limit_bytes = 0;
  int64_t left_bytes = 0;  // Below 0 for a moment, where a limit was lowered.
};

// Of the groups with a limit the one that has the least left; empty when there is none. What the kernel keeps
// of files there is left: it is given back before a process is killed.
std::optional<CgroupMemory> TightestCgroup(const std::string& root = "");

struct CgroupTasks {
  int64_t limit = 0;
  int64_t running = 0;  // Processes and threads, of all that are in the group.
};

// As above.
std::optional<CgroupTasks> TightestCgroupOfTasks(const std::string& root = "");

}  // namespace fsdpd
