#include "client/flags/verb_flags.h"

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <absl/strings/strip.h>

#include <algorithm>
#include <vector>

#include "base/process/cli_app.h"
#include "base/text.h"
#include "client/connect/wait_condition.h"
#include "client/flags/flag_checks.h"
#include "client/text/json_path.h"
#include "client/text/log_choice.h"

namespace fsdpd {
namespace {

const std::vector<std::string> kForms = {"table", "json", "yaml", "wide", "name", "spec", "csv"};

std::string Words(const absl::Status& status) { return std::string(status.message()); }

std::string CheckForm(std::string& form) {
  absl::string_view path = form;
  if (absl::ConsumePrefix(&path, kJsonPathForm)) return Words(JsonPath::Parse(path).status());
  if (std::count(kForms.begin(), kForms.end(), form) > 0) return "";
  const std::string nearest = Nearest(form, kForms);
  return absl::StrCat("'", form, "' is not one of ", absl::StrJoin(kForms, ", "), ", jsonpath=TEMPLATE",
                      nearest.empty() ? "" : absl::StrCat("; did you mean ", nearest, "?"));
}

std::string CheckSortBy(std::string& path) {
  return Words(JsonPath::ParsePath(absl::StripPrefix(path, "-")).status());
}

std::string CheckCondition(std::string& text) { return Words(ParseWaitCondition(text).status()); }

std::string CheckPattern(std::string& text) { return Words(LogPattern::Parse(text).status()); }

bool IsOneOf(const std::string& word, const std::vector<std::string>& words) {
  return std::count(words.begin(), words.end(), word) > 0;
}

void AddWait(CLI::App* app, CommandLine* line) {
  CLI::App* wait =
      AddCommand(app, "wait",
                 "Block until jobs reach a state or a step, end, or are deleted. Exit code 0 if they do, 1 "
                 "once one of them no longer can, and 6 after --timeout.",
                 "  fsdpctl wait tiny-llama-k3x9q2 --for state=running\n"
                 "  fsdpctl wait tiny-llama-k3x9q2 tiny-llama-x1y2z3 --for ended --timeout 3600\n"
                 "  fsdpctl wait tiny-llama-k3x9q2 --for step=200");
  AddOption(wait, "JOB", &line->jobs, "", "Ids of jobs, at most 64")->required();
  AddOption(wait, "--for", &line->wait_for, "CONDITION",
            "Wait for state=NAME[,NAME], ended, step=N or deleted", CheckCondition)
      ->capture_default_str();
  AddOption(wait, "--timeout", &line->wait_timeout_seconds, "SECONDS", "Limit the time; default: no limit",
            CheckWaitSeconds);
}

void AddTop(CLI::App* app, CommandLine* line) {
  CLI::App* top = AddCommand(app, "top",
                             "Show running jobs: loss, tokens/s, overlap, memory and power. Refreshes on a "
                             "terminal until Ctrl-C; prints one table otherwise.",
                             "  fsdpctl top\n"
                             "  fsdpctl top --every 10\n"
                             "  fsdpctl top --once");
  AddOption(top, "--every", &line->every_seconds, "SECONDS", "Refresh every SECONDS", CheckSeconds)
      ->capture_default_str();
  top->add_flag("--once", line->once, "Print one table, even on a terminal");
  top->add_option("--project", line->project, "Show only jobs of this project")->type_name("PROJECT");
  top->add_flag("--all-projects", line->all_projects, "Show jobs of all projects (see get)");
}

void AddDiff(CLI::App* app, CommandLine* line) {
  CLI::App* diff =
      AddCommand(app, "diff",
                 "Compare two specs field by field, with defaults and derived values filled in. "
                 "Each is a file, or the id of a job if no such file exists. Exit code 0 if they "
                 "are equal, 1 if not.",
                 "  fsdpctl diff job.yaml other.yaml\n"
                 "  fsdpctl diff tiny-llama-k3x9q2 -f job.yaml\n"
                 "  fsdpctl diff tiny-llama-k3x9q2 tiny-llama-x1y2z3");
  AddOption(diff, "FIRST", &line->first, "", "File, or id of a job")->required();
  CLI::Option* second = AddOption(diff, "SECOND", &line->target, "", "File, or id of a job");
  AddOption(diff, "-f,--file", &line->file, "FILE", "Read the second spec from FILE; - reads stdin")
      ->excludes(second);
}

void AddExplain(CLI::App* app, CommandLine* line) {
  CLI::App* explain =
      AddCommand(app, "explain",
                 "Explain a field of a spec: meaning, type and default. After `job` or `node`: "
                 "a field of -o json. Or explain a rule, an error id or a failure cause, by name.",
                 "  fsdpctl explain\n"
                 "  fsdpctl explain parallel\n"
                 "  fsdpctl explain train.micro_batch\n"
                 "  fsdpctl explain job.waiting\n"
                 "  fsdpctl explain fp8_sizes\n"
                 "  fsdpctl explain NODE_NOT_IDLE");
  AddOption(explain, "FIELD", &line->field, "",
            "Field, rule or error id to explain; default: list the fields of a spec");
}

void AddContext(CLI::App* app, CommandLine* line) {
  CLI::App* context =
      AddCommand(app, "context",
                 "Manage named coordinators. ~/.config/fsdpd/contexts.yaml or $FSDPD_CONFIG has `current: "
                 "lab`, and under `contexts:` the server, coordinator_ca and token_file of each name.",
                 "  fsdpctl context list\n"
                 "  fsdpctl context use lab\n"
                 "  fsdpctl --context lab get");
  context->require_subcommand(1);
  AddCommand(context, "list", "List contexts and mark the current one.", "  fsdpctl context list");
  CLI::App* show = AddCommand(context, "show", "Show a context; default: the current one.",
                              "  fsdpctl context show\n  fsdpctl context show lab");
  CLI::App* use = AddCommand(context, "use", "Set the current context.", "  fsdpctl context use lab");
  AddOption(show, "NAME", &line->name_of_context, "", "Name of the context");
  AddOption(use, "NAME", &line->name_of_context, "", "Name of the context")->required();
}

void AddCompletion(CLI::App* app, CommandLine* line) {
  CLI::App* completion =
      AddCommand(app, "completion",
                 "Print a shell completion script for commands, flags, jobs and nodes. Names are requested "
                 "from the coordinator, for at most one second.",
                 "  fsdpctl completion bash > ~/.local/share/bash-completion/completions/fsdpctl\n"
                 "  fsdpctl completion zsh > \"${fpath[1]}/_fsdpctl\"\n"
                 "  fsdpctl completion fish > ~/.config/fish/completions/fsdpctl.fish");
  AddOption(completion, "SHELL", &line->shell, "", "bash, zsh or fish", OneOf({"bash", "zsh", "fish"}))
      ->required();
}

// Flags that select steps of a job.
std::vector<CLI::Option*> AddStepRange(CLI::App* app, CommandLine* line) {
  return {
      AddOption(app, "--from", &line->first_step, "N", "Start at step N", WholeNumber(1)),
      AddOption(app, "--to", &line->last_step, "N", "End at step N", WholeNumber(1)),
      AddOption(app, "--every", &line->every_step, "N", "Select only multiples of N", WholeNumber(1)),
      AddOption(app, "--attempt", &line->attempt, "N",
                "Select steps of this attempt; default: the newest version of each step", WholeNumber(1))};
}

void AddExport(CLI::App* app, CommandLine* line) {
  CLI::App* command = AddCommand(app, "export",
                                 "Export the step history of a job for TensorBoard or Weights & Biases. "
                                 "Writes an event file, or a W&B history as JSON lines.",
                                 "  fsdpctl export tiny-llama-k3x9q2 --as tensorboard --out runs/tiny\n"
                                 "  fsdpctl export tiny-llama-k3x9q2 --as wandb --out runs/tiny");
  AddOption(command, "JOB", &line->job, "", "Id of the job")->required();
  AddOption(command, "--as", &line->to, "TOOL", "Write the format of tensorboard or wandb",
            OneOf({"tensorboard", "wandb"}))
      ->required();
  AddOption(command, "--out", &line->out, "DIR", "Write to this directory; created if its parent exists")
      ->required();
  AddStepRange(command, line);
}

}  // namespace

void AddOutputFlag(CLI::App* app, CommandLine* line) {
  AddOption(app, "-o,--output", &line->output, "FORM",
            "Print table, json or yaml; some: wide, name, spec, csv, jsonpath=TEMPLATE", CheckForm)
      ->capture_default_str();
}

std::string OutputFlagError(const CommandLine& line) {
  const std::string& form = line.output;
  const bool is_path = absl::StartsWith(form, kJsonPathForm);
  std::vector<std::string> takers;
  if (form == "wide") takers = {"get", "nodes"};
  if (form == "name") takers = {"get", "nodes", "submit"};
  if (form == "spec") takers = {"get"};
  if (line.step_history && !IsOneOf(form, {"table", "json", "yaml", "csv"}))
    return "--steps supports only -o table, json, yaml or csv";
  if (line.step_timeline && !is_path && !IsOneOf(form, {"table", "json", "yaml"}))
    return "--timeline supports only -o table, json, yaml or jsonpath=TEMPLATE";
  if (form == "spec" && line.watch)
    return "-o spec is not supported with -w, because a spec never changes; remove -w";
  if (form == "csv" && !line.step_history) return "-o csv is supported only by get --steps";
  if (line.command == "export" && form != "table") return "export writes files and does not support -o";
  if (is_path) takers = {"get", "nodes", "describe"};
  const bool prints_text = IsOneOf(line.command, {"explain", "context", "completion", "top"});
  if (prints_text && form != "table")
    return absl::StrCat(line.command, " prints only text and does not support -o ", form);
  if (takers.empty() || IsOneOf(line.command, takers)) {
    const bool follows = line.command == "submit" && line.follow && form == "name";
    return follows ? "-o name is not supported with --follow; remove one of them" : "";
  }
  return absl::StrCat("-o ", is_path ? "jsonpath" : form, " is supported only by ",
                      absl::StrJoin(takers, ", "));
}

void AddGetFlags(CLI::App* get, CommandLine* line) {
  CLI::Option* watch = get->add_flag("-w,--watch", line->watch, "Print a row for each change, until Ctrl-C");
  CLI::Option* steps =
      get->add_flag("--steps", line->step_history, "Print the step history of one job")->excludes(watch);
  for (CLI::Option* option : AddStepRange(get, line)) option->needs(steps);
  CLI::Option* timeline = get->add_flag("--timeline", line->step_timeline,
                                        "Print the timeline of one job's newest step: lanes and memory")
                              ->excludes(watch)
                              ->excludes(steps);
  get->add_flag("--show-labels", line->show_labels, "Add a column of labels to the table, like -o wide")
      ->excludes(steps)
      ->excludes(timeline);
  AddOption(get, "--limit", &line->limit, "N", "Print at most N jobs", WholeNumber(1))
      ->excludes(steps)
      ->excludes(timeline);
  AddOption(get, "--sort-by", &line->sort_by, "FIELD",
            "Sort by a field of -o json, for example last_step.loss; '-' reverses the order")
      ->check(CLI::Validator(CheckSortBy, ""))
      ->excludes(steps)
      ->excludes(timeline);
}

void AddLogFlags(CLI::App* logs, CommandLine* line) {
  AddOption(logs, "--since", &line->since, "TIME",
            "Print only lines since a duration ago (90s, 1h30m, 1d) or a UTC time", CheckSince);
  AddOption(logs, "--grep", &line->grep, "PATTERN",
            "Print only lines that match this extended regular expression")
      ->check(CLI::Validator(CheckPattern, ""));
  logs->add_flag("-p,--previous", line->previous, "Print the attempt before the newest");
  CLI::Option* evidence =
      logs->add_flag("--evidence", line->evidence,
                     "Print hang evidence instead of logs: lanes and threads of stalled ranks");
  for (const char* other : {"--follow", "--tail", "--since"}) evidence->excludes(logs->get_option(other));
}

void AddVerbs(CLI::App* app, CommandLine* line) {
  AddWait(app, line);
  AddTop(app, line);
  AddDiff(app, line);
  AddExplain(app, line);
  AddContext(app, line);
  AddCompletion(app, line);
  AddExport(app, line);
}

}  // namespace fsdpd
