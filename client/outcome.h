// How a command ends: exit codes, and the one way in which errors and faults are told.
#pragma once

#include <absl/status/status.h>

#include <string>

#include "client/console.h"
#include "client/spec_fault.h"
#include "proto/fsdpd/v1/coordinator.pb.h"

namespace fsdpd {

enum ExitCode {
  kExitOk = 0,
  kExitJobFailed = 1,  // The job failed or was cancelled; or an error without a code of its own.
  kExitUsage = 2,
  kExitSpecRefused = 3,
  kExitNotFound = 4,
  kExitUnavailable = 5,
  kExitTimeout = 6,
  kExitInterrupted = 130,
};

// Prints "fsdpctl: ..." and says how to go on where that is known. `address`: the server that was asked.
int ReportError(const absl::Status& status, const std::string& address, Console* console);

// Prints every fault; kExitSpecRefused when one is an error, kExitOk otherwise.
int ReportFaults(const SpecFaults& faults, Console* console);

Violation ToViolation(const v1::Fault& fault);

int ExitCodeOf(v1::JobState ended);

}  // namespace fsdpd
