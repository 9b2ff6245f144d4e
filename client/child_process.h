// Runs a program of this machine and waits for it: its stdout comes back as a string, its stderr is passed on
// while it comes, in pieces that may end anywhere. It reads nothing, and ends with Ctrl-C as the command that
// started it does.
#pragma once

#include <absl/status/statusor.h>
#include <absl/strings/string_view.h>

#include <functional>
#include <string>
#include <vector>

#include "client/interrupt.h"

namespace fsdpd {

struct ChildResult {
  int exit_code = 0;  // -N: ended by signal N.
  std::string output;
};

// `arguments` begin with the program's path. NOT_FOUND when it cannot be run. `interrupt` may be null; fired,
// it ends the child, and the result is CANCELLED.
absl::StatusOr<ChildResult> RunChild(std::vector<std::string> arguments, Interrupt* interrupt,
                                     const std::function<void(absl::string_view)>& on_words);

}  // namespace fsdpd
