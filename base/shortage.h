// Errors of a system that gives this process no memory or no thread, with what it allows the process: people
// look for the limit first, and the system's own words name none.
#pragma once

#include <exception>
#include <optional>
#include <string>

namespace fsdpd {

// "this process may map 800.0 MiB (ulimit -v) and has mapped 791.3 MiB"; "" where nothing limits it.
std::string OwnMemoryLimits();

// "of 28 processes and threads that its control group may have (pids.max), 28 run"; "" where nothing limits
// it. `root` as in cgroup_limits.h.
std::string OwnThreadLimits(const std::string& root = "");

struct Shortage {
  // Of threads, of which a limit allows no more. Else of memory, or nobody knows of what: a thread needs
  // memory for its stack, and the system says of both that it is to be tried again.
  bool of_threads = false;
  std::string text;
};

// Memory that is given back where there is none left, so that it can be told: from the first call on, and
// until the first shortage.
void KeepShortageReserve();
void ReleaseShortageReserve();

// Empty where the exception is of something else. Releases the reserve.
std::optional<Shortage> ShortageIn(const std::exception& error);

}  // namespace fsdpd
