// Conversion of LibTorch's exceptions to absl::Status. Code that calls LibTorch runs inside CatchTorch(), or
// on a lane, which does the same.
//
//   RESOURCE_EXHAUSTED  out of device memory, host memory or threads
//   UNAVAILABLE         a peer or the transport to it was lost
//   INTERNAL            anything else: mismatched shapes, a failed kernel
#pragma once

#include <absl/status/status.h>

#include <exception>
#include <utility>

namespace fsdpd {

// The exception's message without LibTorch's C++ stack trace, which would flood the user's log. For host
// memory and threads, includes the limits of the process.
absl::Status StatusOf(const std::exception& error);

// Whether StatusOf() returned it because a thread could not be created.
bool IsOfThreads(const absl::Status& status);

// Runs `body`, which returns absl::Status, and converts an exception to a Status.
template <typename Body>
absl::Status CatchTorch(Body&& body) {
  try {
    return std::forward<Body>(body)();
  } catch (const std::exception& error) {
    return StatusOf(error);
  }
}

}  // namespace fsdpd
