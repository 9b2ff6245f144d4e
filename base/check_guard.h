// Boundary that contains a failed CHECK: within it, on its thread, FSDPD_CHECK throws instead of aborting the
// process. Use it for pure work that a service does for one client, such as planning a job: a bug should fail
// that job and not all others. Never guard work that changes shared state: after a failed check its state is
// unknown.
#pragma once

#include <absl/status/status.h>

#include <functional>
#include <string>

namespace fsdpd {

// INTERNAL with the location and the condition if a check failed within `work`.
absl::Status GuardChecks(const std::function<void()>& work);

// For check.cc: the exception of a failed check if ChecksAreGuarded().
struct CheckFailure {
  std::string what;
};
bool ChecksAreGuarded();

}  // namespace fsdpd
