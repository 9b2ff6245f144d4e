// The commands of `fsdpctl ckpt`, one file each for what only looks, what converts and what compares, and how
// they end.
#pragma once

#include <absl/status/status.h>

#include <string>

#include "client/ckpt_report.h"
#include "client/command_line.h"
#include "client/console.h"

namespace fsdpd {

int RunCkptConvert(const CommandLine& line, Console* console);
int RunCkptDiff(const CommandLine& line, Console* console);

// There is no checkpoint, or none that can be read at all; or this machine cannot read or write it now. Tells
// it and returns the exit code.
int FailCkpt(const absl::Status& status, Console* console);

bool IsInterrupted(const Console& console);

}  // namespace fsdpd
