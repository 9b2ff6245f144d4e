// Which agents a coordinator takes, by the versions of both. Of the first number's release all talk to each
// other, whichever is older: what one of them does not know yet is said by fields of Register (log_windows,
// traces, preflights) and left out. Between two first numbers nothing is promised, and the agent is refused
// before anything is sent to it.
//
// Pure.
#pragma once

#include <absl/status/status.h>
#include <absl/strings/string_view.h>

namespace fsdpd {

// FAILED_PRECONDITION names both, and what to do. An agent that says no version, or none that begins with a
// number, is of before there was one.
absl::Status CheckAgentVersion(absl::string_view agent, absl::string_view own);

}  // namespace fsdpd
