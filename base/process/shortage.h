// Errors about lack of memory or threads, with the limits of this process: the system error does not name the
// limit that was reached.
#pragma once

#include <exception>
#include <optional>
#include <string>

namespace fsdpd {

// "this process may map 800.0 MiB (ulimit -v) and has mapped 791.3 MiB"; "" without limits.
std::string OwnMemoryLimits();

// "of 28 processes and threads that its control group may have (pids.max), 28 run"; "" without limits. `root`
// as in cgroup_limits.h.
std::string OwnThreadLimits(const std::string& root = "");

struct Shortage {
  // The thread limit was reached. False: out of memory, or unknown: a thread needs memory for its stack, and
  // the system returns EAGAIN for both.
  bool of_threads = false;
  std::string text;
};

// Memory reserve that is released when memory is exhausted, so that the error can be reported: held from the
// first call until the first shortage.
void KeepShortageReserve();
void ReleaseShortageReserve();

// Empty if the exception has another cause. Releases the reserve.
std::optional<Shortage> ShortageIn(const std::exception& error);

}  // namespace fsdpd
