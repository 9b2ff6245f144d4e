// Exit codes of fsdpctl, and the uniform format of its errors and spec violations.
#pragma once

#include <absl/status/status.h>

#include <string>

#include "base/spec_text/located_violation.h"
#include "client/text/console.h"
#include "proto/fsdpd/v1/coordinator.pb.h"

namespace fsdpd {

// Stable exit codes, documented in docs/fsdpctl.md.
enum ExitCode {
  kExitOk = 0,
  kExitJobFailed = 1,    // The job failed or was cancelled, or can no longer meet the condition of `wait`.
  kExitSpecsDiffer = 1,  // Like diff(1).
  kExitUsage = 2,        // Usage error, or a file on the command line cannot be read or written.
  kExitSpecRefused = 3,
  kExitNotFound = 4,
  kExitUnavailable = 5,  // No coordinator is reachable, or a node that it needs is not ready.
  kExitTimeout = 6,      // The coordinator is reachable, and did not respond in time.
  kExitFailed = 7,       // Any other failure of the coordinator or of fsdpctl.
  kExitNotWritten = 8,   // A write to stdout failed.
  kExitDamaged = 9,      // A checkpoint is corrupt.
  kExitDiffers = 10,     // Two compared checkpoints differ.
  kExitInterrupted = 130,
};

// Prints "fsdpctl: ..." and a hint if the fix is known. `address`: the server that was called. `job`: named
// before the message; may be empty. Returns the exit code.
int ReportError(const absl::Status& status, const std::string& address, Console* console,
                const std::string& job = "");

// Prints all violations. Returns kExitSpecRefused if one of them is an error, otherwise kExitOk.
int ReportViolations(const LocatedViolations& violations, Console* console);

// The same violations for programs, with `file`, `line` and `column`.
v1::ValidateJobResponse ToProto(const LocatedViolations& violations);

Violation ToViolation(const v1::Violation& fault);

int ExitCodeOf(v1::JobState ended);

}  // namespace fsdpd
