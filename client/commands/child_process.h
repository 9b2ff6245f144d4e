// A child process that runs to completion: stdout is returned as a string, stderr is forwarded as it arrives,
// in chunks that may end anywhere. The child has no stdin. Ctrl-C ends it together with its parent.
#pragma once

#include <absl/status/statusor.h>
#include <absl/strings/string_view.h>

#include <functional>
#include <string>
#include <vector>

#include "client/text/interrupt.h"

namespace fsdpd {

struct ChildResult {
  int exit_code = 0;  // -N: killed by signal N.
  std::string output;
};

// arguments[0] is the path of the program. Returns NOT_FOUND if it cannot be executed, and CANCELLED if
// `interrupt` (may be null) fired, after the child has ended. `on_stderr` runs on the calling thread.
absl::StatusOr<ChildResult> RunChild(std::vector<std::string> arguments, Interrupt* interrupt,
                                     const std::function<void(absl::string_view)>& on_stderr);

}  // namespace fsdpd
