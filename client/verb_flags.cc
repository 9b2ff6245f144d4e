#include "client/verb_flags.h"

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <absl/strings/strip.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <vector>

#include "base/cli_app.h"
#include "base/text.h"
#include "client/flag_checks.h"
#include "client/json_path.h"
#include "client/log_choice.h"
#include "client/wait_condition.h"

namespace fsdpd {
namespace {

const std::vector<std::string> kForms = {"table", "json", "yaml", "wide", "name", "spec", "csv"};

std::string Words(const absl::Status& status) { return std::string(status.message()); }

std::string CheckForm(std::string& form) {
  absl::string_view path = form;
  if (absl::ConsumePrefix(&path, kJsonPathForm)) return Words(JsonPath::Parse(path).status());
  if (std::count(kForms.begin(), kForms.end(), form) > 0) return "";
  const std::string nearest = Nearest(form, kForms);
  return absl::StrCat("'", form, "' is none of ", absl::StrJoin(kForms, ", "), ", jsonpath=TEMPLATE",
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
  wait->add_option("JOB", line->jobs, "Ids of jobs, at most 64")
      ->required()
      ->check(NotEmpty())
      ->type_name("");
  wait->add_option("--for", line->wait_for, "state=NAME[,NAME], ended, step=N or deleted")
      ->check(CLI::Validator(CheckCondition, ""))
      ->type_name("CONDITION")
      ->capture_default_str();
  wait->add_option("--timeout", line->wait_timeout_seconds, "For how long to wait at most; default: for ever")
      ->check(CLI::Validator(CheckWaitSeconds, ""))
      ->type_name("SECONDS");
}

void AddTop(CLI::App* app, CommandLine* line) {
  CLI::App* top = AddCommand(app, "top",
                             "Show what runs: loss, tokens/s, overlap, memory against the plan, power. A "
                             "screen that is drawn anew on a "
                             "terminal, until Ctrl-C; one table elsewhere.",
                             "  fsdpctl top\n"
                             "  fsdpctl top --every 10\n"
                             "  fsdpctl top --once");
  top->add_option("--every", line->every_seconds, "How often it is drawn")
      ->check(CLI::Validator(CheckSeconds, ""))
      ->type_name("SECONDS")
      ->capture_default_str();
  top->add_flag("--once", line->once, "One table, on a terminal too");
  top->add_option("--project", line->project, "Only jobs of this project")->type_name("PROJECT");
  top->add_flag("--all-projects", line->all_projects, "Jobs of all projects, as of `get`");
}

void AddDiff(CLI::App* app, CommandLine* line) {
  CLI::App* diff = AddCommand(app, "diff",
                              "Compare two specs, field by field, with defaults and what follows from other "
                              "fields filled in. Each is a "
                              "file, or a job's id where no file is called so. The exit code is 0 where they "
                              "are equal and 1 where not.",
                              "  fsdpctl diff job.yaml other.yaml\n"
                              "  fsdpctl diff tiny-llama-k3x9q2 -f job.yaml\n"
                              "  fsdpctl diff tiny-llama-k3x9q2 tiny-llama-x1y2z3");
  diff->add_option("FIRST", line->first, "A file, or a job's id")
      ->required()
      ->check(NotEmpty())
      ->type_name("");
  CLI::Option* second = diff->add_option("SECOND", line->target, "Another")->check(NotEmpty())->type_name("");
  diff->add_option("-f,--file", line->file, "The second, as a file; - reads stdin")
      ->check(NotEmpty())
      ->type_name("FILE")
      ->excludes(second);
}

void AddExplain(CLI::App* app, CommandLine* line) {
  CLI::App* explain =
      AddCommand(app, "explain",
                 "Explain a field of a spec: meaning, type and default. After `job` or `node`: "
                 "a field of -o json. Or explain a rule, or the reason of an error, by name.",
                 "  fsdpctl explain\n"
                 "  fsdpctl explain parallel\n"
                 "  fsdpctl explain train.micro_batch\n"
                 "  fsdpctl explain job.waiting\n"
                 "  fsdpctl explain fp8_sizes\n"
                 "  fsdpctl explain NODE_NOT_IDLE");
  explain
      ->add_option("FIELD", line->field,
                   "Path of a field, or name of a rule or reason; default: list the fields of a spec")
      ->check(NotEmpty())
      ->type_name("");
}

void AddContext(CLI::App* app, CommandLine* line) {
  CLI::App* context =
      AddCommand(app, "context",
                 "Named coordinators, in ~/.config/fsdpd/contexts.yaml or the file that FSDPD_CONFIG names: "
                 "`current: lab`, "
                 "and below `contexts:` of each name its server, coordinator_ca and token_file.",
                 "  fsdpctl context list\n"
                 "  fsdpctl context use lab\n"
                 "  fsdpctl --context lab get");
  context->require_subcommand(1);
  AddCommand(context, "list", "All of them, and which is used.", "  fsdpctl context list");
  CLI::App* show = AddCommand(context, "show", "One of them; without a name the one that is used.",
                              "  fsdpctl context show\n  fsdpctl context show lab");
  CLI::App* use =
      AddCommand(context, "use", "Use it from now on, without --context.", "  fsdpctl context use lab");
  show->add_option("NAME", line->name_of_context, "Its name")->check(NotEmpty())->type_name("");
  use->add_option("NAME", line->name_of_context, "Its name")->required()->check(NotEmpty())->type_name("");
}

void AddCompletion(CLI::App* app, CommandLine* line) {
  CLI::App* completion =
      AddCommand(app, "completion",
                 "Print the script by which a shell completes commands, flags, and the names of jobs and "
                 "nodes, for which "
                 "it asks the coordinator for a second at most.",
                 "  fsdpctl completion bash > ~/.local/share/bash-completion/completions/fsdpctl\n"
                 "  fsdpctl completion zsh > \"${fpath[1]}/_fsdpctl\"\n"
                 "  fsdpctl completion fish > ~/.config/fish/completions/fsdpctl.fish");
  completion->add_option("SHELL", line->shell, "bash, zsh or fish")
      ->required()
      ->check(OneOf({"bash", "zsh", "fish"}))
      ->type_name("");
}

// Flags that select steps of a job.
std::vector<CLI::Option*> AddStepRange(CLI::App* app, CommandLine* line) {
  return {
      app->add_option("--from", line->first_step, "From this step on")->check(WholeNumber(1))->type_name("N"),
      app->add_option("--to", line->last_step, "Up to this step")->check(WholeNumber(1))->type_name("N"),
      app->add_option("--every", line->every_step, "Only steps that it divides")
          ->check(WholeNumber(1))
          ->type_name("N"),
      app->add_option(
             "--attempt", line->attempt,
             "All that this attempt has made; default: the run's, each step once, as it was made last")
          ->check(WholeNumber(1))
          ->type_name("N")};
}

void AddExport(CLI::App* app, CommandLine* line) {
  CLI::App* command = AddCommand(app, "export",
                                 "Write what is kept of each step of a job as other tools read it: an event "
                                 "file for TensorBoard, or W&B's history as lines of JSON.",
                                 "  fsdpctl export tiny-llama-k3x9q2 --as tensorboard --out runs/tiny\n"
                                 "  fsdpctl export tiny-llama-k3x9q2 --as wandb --out runs/tiny");
  command->add_option("JOB", line->job, "The job's id")->required()->check(NotEmpty())->type_name("");
  command->add_option("--as", line->to, "tensorboard or wandb")
      ->required()
      ->check(OneOf({"tensorboard", "wandb"}))
      ->type_name("TOOL");
  command->add_option("--out", line->out, "The directory to write to; it is made where its parent is there")
      ->required()
      ->check(NotEmpty())
      ->type_name("DIR");
  AddStepRange(command, line);
}

}  // namespace

void AddOutputFlag(CLI::App* app, CommandLine* line) {
  app->add_option(
         "-o,--output", line->output,
         "Form of the data: table, json or yaml; for some also wide, name, spec, csv or jsonpath=TEMPLATE")
      ->check(CLI::Validator(CheckForm, ""))
      ->type_name("FORM")
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
    return "--steps takes -o table, json, yaml or csv";
  if (line.step_timeline && !is_path && !IsOneOf(form, {"table", "json", "yaml"}))
    return "--course takes -o table, json, yaml or jsonpath=TEMPLATE";
  if (form == "spec" && line.watch)
    return "-o spec is of a job as it was submitted, which does not change; leave -w out";
  if (form == "csv" && !line.step_history) return "-o csv is for get --steps";
  if (line.command == "export" && form != "table") return "export writes files, and takes no -o";
  if (is_path) takers = {"get", "nodes", "describe"};
  const bool prints_text = IsOneOf(line.command, {"explain", "context", "completion", "top"});
  if (prints_text && form != "table")
    return absl::StrCat(line.command, " prints text alone, and no -o ", form);
  if (takers.empty() || IsOneOf(line.command, takers)) {
    const bool follows = line.command == "submit" && line.follow && form == "name";
    return follows ? "--follow shows steps; leave -o name out" : "";
  }
  return absl::StrCat("-o ", is_path ? "jsonpath" : form, " is for ", absl::StrJoin(takers, ", "));
}

void AddGetFlags(CLI::App* get, CommandLine* line) {
  CLI::Option* watch =
      get->add_flag("-w,--watch", line->watch, "Go on: a row of each job that changes, until Ctrl-C");
  CLI::Option* steps =
      get->add_flag("--steps", line->step_history, "What is kept of each step of one job, instead of the job")
          ->excludes(watch);
  for (CLI::Option* option : AddStepRange(get, line)) option->needs(steps);
  CLI::Option* course =
      get->add_flag("--course", line->step_timeline,
                    "How the newest step of one job went: what its lanes ran, and its memory by component")
          ->excludes(watch)
          ->excludes(steps);
  get->add_flag("--show-labels", line->show_labels,
                "In the table: the labels of each job, which -o wide has too")
      ->excludes(steps)
      ->excludes(course);
  get->add_option("--limit", line->limit, "At most so many jobs")
      ->check(WholeNumber(1))
      ->type_name("N")
      ->excludes(steps)
      ->excludes(course);
  get->add_option("--sort-by", line->sort_by,
                  "By a field of -o json, as in last_step.loss; with a '-' before it the largest first")
      ->check(NotEmpty())
      ->check(CLI::Validator(CheckSortBy, ""))
      ->excludes(steps)
      ->excludes(course)
      ->type_name("FIELD");
}

void AddLogFlags(CLI::App* logs, CommandLine* line) {
  logs->add_option("--since", line->since,
                   "Only lines since then: how long ago (90s, 1h30m, 1d), or a time in UTC")
      ->check(CLI::Validator(CheckSince, ""))
      ->type_name("TIME");
  logs->add_option("--grep", line->grep, "Only lines that this extended regular expression matches")
      ->check(NotEmpty())
      ->check(CLI::Validator(CheckPattern, ""))
      ->type_name("PATTERN");
  logs->add_flag("-p,--previous", line->previous, "Of the attempt before the newest");
  CLI::Option* evidence =
      logs->add_flag("--evidence", line->evidence,
                     "Instead of the logs what agents kept of ranks that stood still: lanes and threads");
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
