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

}  // namespace fsdpd
