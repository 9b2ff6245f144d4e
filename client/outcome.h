// How a command ends: exit codes, and the one way in which errors and faults are told.
#pragma once

#include <absl/status/status.h>

#include <string>

#include "base/spec_fault.h"
#include "client/console.h"
#include "proto/fsdpd/v1/coordinator.pb.h"

namespace fsdpd {

// docs/fsdpctl.md has them for people; a code means one thing.
enum ExitCode {
  kExitOk = 0,
  kExitJobFailed = 1,    // The job that was followed failed or was cancelled, or will not be as `wait` asks.
  kExitSpecsDiffer = 1,  // As `diff` says it everywhere.
  kExitUsage = 2,        // Or a file of the command line that cannot be read or written.
  kExitSpecRefused = 3,
  kExitNotFound = 4,
  kExitUnavailable = 5,  // No coordinator, or it cannot answer now: a node is not ready.
  kExitTimeout = 6,      // Somebody is there, and did not answer in time.
  kExitFailed = 7,       // The coordinator refused or failed otherwise; or fsdpctl did, or measured nothing.
  kExitNotWritten = 8,   // Stdout did not take what was asked for.
  kExitDamaged = 9,      // A checkpoint has a fault.
  kExitDiffers = 10,     // Two checkpoints that were compared.
  kExitInterrupted = 130,
};

// Prints "fsdpctl: ..." and says how to go on where that is known. `address`: the server that was asked.
int ReportError(const absl::Status& status, const std::string& address, Console* console);

// Prints every fault; kExitSpecRefused when one is an error, kExitOk otherwise.
int ReportFaults(const SpecFaults& faults, Console* console);

// The same for programs, with `file`, `line` and `column` of each.
v1::ValidateJobResponse ToProto(const SpecFaults& faults);

Violation ToViolation(const v1::Fault& fault);

int ExitCodeOf(v1::JobState ended);

}  // namespace fsdpd
