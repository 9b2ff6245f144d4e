// Entry points of `fsdpctl ckpt`, and its error reporting: inspect and verify (ckpt_command.cc), convert and
// diff each have a file.
#pragma once

#include <absl/status/status.h>

#include <string>

#include "client/commands/ckpt_report.h"
#include "client/flags/command_line.h"
#include "client/text/console.h"

namespace fsdpd {

int RunCkptConvert(const CommandLine& line, Console* console);
int RunCkptMerge(const CommandLine& line, Console* console);  // In ckpt_convert.cc.
// Replaces a directory of checkpoints with its newest one, and reports that. Returns the exit code.
int ResolveCheckpoint(std::string* path, Console* console);
int RunCkptDiff(const CommandLine& line, Console* console);

// Reports that a checkpoint is missing, unreadable, or temporarily not accessible. Returns the exit code.
int ReportCkptError(const absl::Status& status, Console* console);

bool IsInterrupted(const Console& console);

}  // namespace fsdpd
