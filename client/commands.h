// The commands of fsdpctl: each maps its flags to calls and the answers to text and an exit code.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "client/command_line.h"
#include "client/console.h"
#include "client/session.h"

namespace fsdpd {

// Parses and runs one command line (without the program's name). Returns the exit code (client/outcome.h).
int RunFsdpctl(const std::vector<std::string>& arguments, Console* console);

// The program of PATH (client/plugin_verbs.h) that a command line is for; empty: fsdpctl itself.
std::string ProgramOf(const std::vector<std::string>& arguments);

// Becomes that program. Returns, with an exit code, only where that cannot be done.
int RunInstead(const std::string& program, const std::vector<std::string>& arguments);

// Those that read a spec: submit, validate, plan.
int RunSpecCommand(const CommandLine& line, Console* console);

// From another system's configuration to a spec: migrate.
int RunMigrateCommand(const CommandLine& line, Console* console);

// Measures this node, in a process of its own: profile-device.
int RunProfileCommand(const CommandLine& line, Console* console);

// Reads checkpoints, without a coordinator: ckpt.
int RunCkptCommand(const CommandLine& line, Console* console);

// Makes a token, without a coordinator: token.
int RunTokenCommand(const CommandLine& line, Console* console);

// What a field means, without a coordinator: explain.
int RunExplain(const CommandLine& line, Console* console);

// Named coordinators: context.
int RunContextCommand(const CommandLine& line, Console* console);

// How two specs differ: diff. A coordinator is asked for jobs alone.
int RunDiff(const CommandLine& line, Console* console);

// A shell's script: completion. What it calls, with the words so far.
int RunCompletion(const CommandLine& line, Console* console);
int RunComplete(const std::vector<std::string>& words, Console* console);

// What runs now: top.
int RunTop(Session* session);

// What ranks wrote: logs.
int RunLogs(Session* session);

// Has a job's steps traced, and writes the traces as one: trace.
int RunTrace(Session* session);

// What becomes of a job: cancel, pause, resume, retry, delete. Empty for another command.
std::optional<int> RunLifeCommand(Session* session);

// About one node: describe node, node delete, cordon, uncordon, preflight. Empty for another command.
std::optional<int> RunNodeCommand(Session* session);

// Jobs as a table, as data, or as they change: get.
int RunGet(Session* session);

// What is kept of a job's steps: get --steps. For other tools: export.
int RunSteps(Session* session);
int RunCourse(Session* session);  // How the newest one went: get --course.
int RunExport(Session* session);

// Until jobs are as somebody wants them: wait.
int RunWait(Session* session);

// What has happened, and a node that is emptied: events, drain. Empty for another command.
std::optional<int> RunEventCommand(Session* session);

// The jobs that the flags of `get` and `cancel` ask for, of all pages.
absl::StatusOr<v1::ListJobsResponse> ListAsked(Session* session);
// Says that --array names none; the exit code.
int NoSuchArray(Session* session);

// The rest.
int RunJobCommand(const CommandLine& line, Console* console);

}  // namespace fsdpd
