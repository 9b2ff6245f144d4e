// A boundary that a failed CHECK does not pass: within it, on its thread, FSDPD_CHECK unwinds instead of
// ending the process. It is for pure work that a service does for somebody else, such as planning a job: our
// mistake in it must cost that job and not all the others. Work that changes shared state is never guarded:
// after a failed check nothing is known of it.
#pragma once

#include <absl/status/status.h>

#include <functional>
#include <string>

namespace fsdpd {

// INTERNAL with the place and the condition when a check failed within `work`.
absl::Status GuardChecks(const std::function<void()>& work);

// For check.cc: what a failed check throws where ChecksAreGuarded().
struct CheckFailure {
  std::string what;
};
bool ChecksAreGuarded();

}  // namespace fsdpd
