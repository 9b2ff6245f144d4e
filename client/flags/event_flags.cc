#include "client/flags/event_flags.h"

#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>

#include <CLI/CLI.hpp>
#include <map>

#include "client/flags/flag_checks.h"

namespace fsdpd {
namespace {

std::string CheckCursor(std::string& text) {
  int64_t cursor = 0;
  if (absl::SimpleAtoi(text, &cursor) && cursor >= 0) return "";
  return absl::StrCat("'", text, "' is not a SEQUENCE number; use a number that `events` printed");
}

// A selector of a command that changes jobs must have a positive requirement. With only negative ones it
// would match almost all jobs, because most jobs have no labels.
std::string CheckHasPositiveRequirement(std::string& text) {
  for (const absl::string_view requirement : absl::StrSplit(text, ',')) {
    if (!requirement.empty() && requirement.find('!') == absl::string_view::npos) return "";
  }
  return absl::StrCat("'", text, "' has only negative requirements; add a positive one, for example team=a");
}

// Rejects the set-based selectors of Kubernetes.
std::string CheckNoSets(std::string& text) {
  for (const char* word : {" in ", " in(", " notin ", " notin("}) {
    if (text.find(word) == std::string::npos) continue;
    return absl::StrCat("'", text,
                        "': sets (in, notin) are not supported; use key=value, key!=value, key and !key, "
                        "separated by commas");
  }
  return "";
}

std::string CheckLabel(std::string& text) {
  const size_t equals = text.find('=');
  return equals == 0 || equals == std::string::npos ? absl::StrCat("'", text, "' is not KEY=VALUE") : "";
}

}  // namespace

void AddLabelFlags(CLI::App* app, CommandLine* line) {
  app->get_subcommand("submit")
      ->add_option("--label", line->labels, "Add labels for get -l; repeatable, or KEY=VALUE,KEY=VALUE")
      ->delimiter(',')
      ->check(CLI::Validator(CheckLabel, ""))
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  app->get_subcommand("get")
      ->add_option("-l,--selector", line->selector,
                   "List only jobs with these labels: team=a,stage!=test,owner,!old")
      ->check(NotEmpty())
      ->check(CLI::Validator(CheckNoSets, ""))
      ->type_name("SELECTOR");
  const std::map<std::string, const char*> whose = {
      {"cancel", "Cancel jobs with these labels that have not ended (see get -l)"},
      {"pause", "Pause jobs with these labels that have not ended (see get -l)"},
      {"resume", "Resume paused jobs with these labels (see get -l)"},
      {"retry", "Retry failed and cancelled jobs with these labels (see get -l)"},
      {"delete", "Delete ended jobs with these labels (see get -l)"}};
  for (const auto& [name, about] : whose) {
    CLI::App* command = app->get_subcommand(name);
    command->add_option("-l,--selector", line->selector, about)
        ->check(CLI::Validator(CheckNoSets, ""))
        ->check(CLI::Validator(CheckHasPositiveRequirement, ""))
        ->type_name("SELECTOR")
        ->excludes(command->get_option("JOB")->required(false));
  }
}

std::string MissingJobError(const CommandLine& line) {
  if (!line.etag.empty() && line.jobs.size() != 1) return "--etag requires exactly one JOB";
  if (!line.job.empty() || !line.jobs.empty() || !line.selector.empty()) return "";
  if (line.command == "cancel" && line.array.empty()) return "JOB, --array or --selector is required";
  if (line.command == "pause" || line.command == "resume" || line.command == "retry" ||
      line.command == "delete")
    return "JOB or --selector is required";
  return "";
}

void AddEventCommands(CLI::App* app, CommandLine* line) {
  CLI::App* events = AddCommand(
      app, "events",
      "List events of jobs and nodes, oldest first. Events are submits, launches, failures with their "
      "causes, checkpoints, pauses, cordons, preflights and drains. With -w, continue with new events.",
      "  fsdpctl events --since 1h\n"
      "  fsdpctl events --job tiny-llama-k3x9q2\n"
      "  fsdpctl events --node node-7 -w\n"
      "  fsdpctl events -w --after 4711 -o json");
  events->add_option("--job", line->job, "List only events of this job; a deleted one by its full id")
      ->check(NotEmpty())
      ->type_name("JOB");
  events->add_option("--node", line->node, "List only events of this node")
      ->check(NotEmpty())
      ->type_name("NODE");
  CLI::Option* since =
      events
          ->add_option("--since", line->since,
                       "List only events since a duration ago (90s, 1h30m, 1d) or a UTC time")
          ->check(CLI::Validator(CheckSince, ""))
          ->type_name("TIME");
  events->add_option("--after", line->after_event, "List only events after this SEQUENCE, without gaps")
      ->check(CLI::Validator(CheckCursor, ""))
      ->type_name("SEQUENCE")
      ->excludes(since);
  events->add_flag("-w,--watch", line->follow, "Watch for new events, across restarts of the coordinator");
}

}  // namespace fsdpd
