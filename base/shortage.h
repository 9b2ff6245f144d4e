// Errors of a system that gives this process no memory or no thread, with what it allows the process: people
// look for the limit first, and the system's own words name none.
#pragma once

#include <exception>
#include <optional>
#include <string>

namespace fsdpd {

// "this process may map 800.0 MiB (ulimit -v) and has mapped 791.3 MiB"; "" where nothing limits it.
std::string OwnMemoryLimits();

// "of 28 processes and threads that its control group may have (pids.max), 28 run", with the limits of memory
// that stacks of threads are mapped from. `root` as in cgroup_limits.h.
std::string OwnThreadLimits(const std::string& root = "");

struct Shortage {
  bool of_threads = false;  // Else of memory.
  std::string text;         // "out of host memory: " with OwnMemoryLimits(), or of threads likewise.
};

// Empty where the exception is of something else.
std::optional<Shortage> ShortageIn(const std::exception& error);

}  // namespace fsdpd
