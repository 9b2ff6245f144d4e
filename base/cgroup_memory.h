// How much memory the control groups of this process allow it: the smallest limit among its own group and
// those above, as each of them binds. Pods, systemd's MemoryMax and Slurm set it at different depths, in both
// versions of the kernel's interface.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace fsdpd {

// Empty when nothing limits it. `root` stands before /proc and /sys, for tests.
std::optional<int64_t> CgroupMemoryLimit(const std::string& root = "");

struct CgroupMemory {
  int64_t limit_bytes = 0;
  int64_t left_bytes = 0;  // Below 0 for a moment, where a limit was lowered.
};

// Of the groups with a limit the one that has the least left; empty when there is none. What the kernel keeps
// of files there is left: it is given back before a process is killed.
std::optional<CgroupMemory> TightestCgroup(const std::string& root = "");

}  // namespace fsdpd
