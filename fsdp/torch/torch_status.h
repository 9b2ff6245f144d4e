// LibTorch throws; everything else here returns absl::Status. This is the seam between the two: code that
// calls LibTorch runs inside CatchTorch(), or inside a lane, which does the same.
//
//   RESOURCE_EXHAUSTED  the device or the host has not enough memory, or the host no thread
//   UNAVAILABLE         a peer or the transport to it is gone
//   INTERNAL            anything else: a shape that does not fit, a kernel that failed
#pragma once

#include <absl/status/status.h>

#include <exception>
#include <utility>

namespace fsdpd {

// The exception's words without LibTorch's C++ stack, which would fill the log line of a user.
// The host's is told with the limits of the process.
absl::Status StatusOf(const std::exception& error);

// Whether it is StatusOf()'s of a thread that a limit of threads did not allow.
bool IsOfThreads(const absl::Status& status);

// Runs `body`, which returns absl::Status, and turns what it throws into one.
template <typename Body>
absl::Status CatchTorch(Body&& body) {
  try {
    return std::forward<Body>(body)();
  } catch (const std::exception& error) {
    return StatusOf(error);
  }
}

}  // namespace fsdpd
