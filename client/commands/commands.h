// Entry points of the fsdpctl commands. Each one maps flags to RPCs, and responses to text and an exit code
// (client/connect/outcome.h).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/api/label_selector.h"
#include "client/commands/session.h"
#include "client/flags/command_line.h"
#include "client/text/console.h"

namespace fsdpd {

// Parses and runs one command line (without the program's name). Returns the exit code
// (client/connect/outcome.h).
int RunFsdpctl(const std::vector<std::string>& arguments, Console* console);

// Path of the plugin in PATH (client/flags/plugin_verbs.h) that handles this command line; empty: fsdpctl
// itself.
std::string PluginFor(const std::vector<std::string>& arguments);

// Replaces this process by the plugin (execv). Returns only on failure, with an exit code.
int ExecPlugin(const std::string& program, const std::vector<std::string>& arguments);

// Commands that read a spec: submit, validate, plan.
int RunSpecCommand(const CommandLine& line, Console* console);

// migrate: converts the configuration of another training system to a spec.
int RunMigrateCommand(const CommandLine& line, Console* console);

// profile-device: measures the devices of this node in a child process.
int RunProfileCommand(const CommandLine& line, Console* console);

// ckpt: inspects, verifies, converts and compares checkpoints, without a coordinator.
int RunCkptCommand(const CommandLine& line, Console* console);

// token: creates a token, without a coordinator.
int RunTokenCommand(const CommandLine& line, Console* console);

// explain: prints the documentation of a field, without a coordinator.
int RunExplain(const CommandLine& line, Console* console);

// context: manages named coordinators.
int RunContextCommand(const CommandLine& line, Console* console);

// diff: compares two specs. Calls a coordinator only if one of them is a job.
int RunDiff(const CommandLine& line, Console* console);

// completion: prints the completion script of a shell. RunComplete() prints the candidates for `words`; the
// script calls it.
int RunCompletion(const CommandLine& line, Console* console);
int RunComplete(const std::vector<std::string>& words, Console* console);

// top: shows running jobs.
int RunTop(Session* session);

// logs: prints the log lines of ranks.
int RunLogs(Session* session);

// trace: records the next steps of a job, and merges the traces of its ranks into one file.
int RunTrace(Session* session);

// Job lifecycle: cancel, pause, resume, retry, delete. Returns nullopt for any other command.
std::optional<int> RunLifecycleCommand(Session* session);

// Node commands: describe node, node delete, cordon, uncordon, preflight. Returns nullopt for any other
// command.
std::optional<int> RunNodeCommand(Session* session);

// get: lists jobs as a table or as data, or watches them.
int RunGet(Session* session);

int RunStepHistory(Session* session);   // get --steps: the step history.
int RunStepTimeline(Session* session);  // get --timeline: the timeline of the newest step.
int RunExport(Session* session);        // export: the step history in the format of another tool.

// wait: blocks until jobs reach a state or step.
int RunWait(Session* session);

// events and drain. Returns nullopt for any other command.
std::optional<int> RunEventCommand(Session* session);

// Parses --selector.
absl::StatusOr<Selector> SelectorOf(const CommandLine& line);
// Lists the jobs that the flags of `get` or `cancel` select, from all pages.
absl::StatusOr<v1::ListJobsResponse> ListSelectedJobs(Session* session);
// Reports that --array matches no job. Returns the exit code.
int ReportUnknownArray(Session* session);

// Dispatches every command that needs a coordinator.
int RunJobCommand(const CommandLine& line, Console* console);

}  // namespace fsdpd
