// Version compatibility between agents and the coordinator. Releases with the same major version work
// together, whichever is older: Register declares optional features (log_windows, traces, preflights), and a
// missing one is not used. Different major versions are incompatible, and the agent is rejected before
// anything is sent to it.
//
// Pure.
#pragma once

#include <absl/status/status.h>
#include <absl/strings/string_view.h>

namespace fsdpd {

// FAILED_PRECONDITION with both versions and the fix. An agent without a version, or whose version does not
// start with a number, is older than versioned releases.
absl::Status CheckAgentVersion(absl::string_view agent, absl::string_view own);

}  // namespace fsdpd
