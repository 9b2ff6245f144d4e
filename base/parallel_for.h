// Parallel loop over independent items on several threads, including that of the caller.
//
// at::parallel_for is a serial loop in files that are compiled without OpenMP, like all files here: with
// OpenMP, its runtime would be in the process twice.
#pragma once

#include <absl/status/status.h>

#include <cstddef>
#include <functional>

namespace fsdpd {

// Calls work(0) ... work(count - 1), started in order, on at most `threads` threads: on fewer if the system
// starts no more. After the first error no further item starts; returns that error once the started ones have
// returned.
// REQUIRES: threads > 0; `work` does not throw.
absl::Status ParallelFor(size_t count, int threads, const std::function<absl::Status(size_t)>& work);

// Also calls `stopped` before each item, and returns CANCELLED once it is true.
absl::Status ParallelFor(size_t count, int threads, const std::function<bool()>& stopped,
                         const std::function<absl::Status(size_t)>& work);

}  // namespace fsdpd
