// Cgroup limits of this process: memory, and number of processes and threads. Considers the own cgroup and
// all of its ancestors, since each of them applies: pods, MemoryMax and TasksMax of systemd, and Slurm set
// limits at different depths, in cgroup v1 and v2. `root` is a prefix of /proc and /sys, for tests.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace fsdpd {

// The lowest limit; empty if absent.
std::optional<int64_t> CgroupMemoryLimit(const std::string& root = "");

struct CgroupMemory {
  int64_t limit_bytes = 0;
  int64_t left_bytes = 0;  // Temporarily below 0 if a limit was lowered.
};

// The cgroup with the least memory left among those with a limit; empty if absent. Page cache counts
// as left: it is reclaimed before a process is killed.
std::optional<CgroupMemory> TightestCgroup(const std::string& root = "");

struct CgroupTasks {
  int64_t limit = 0;
  int64_t running = 0;  // Processes and threads in the cgroup.
};

// The cgroup with the fewest tasks left.
std::optional<CgroupTasks> TightestCgroupOfTasks(const std::string& root = "");

}  // namespace fsdpd
