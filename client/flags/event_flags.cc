#include "client/flags/event_flags.h"

#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>

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
  AddOption(app->get_subcommand("submit"), "--label", &line->labels, "KEY=VALUE",
            "Add labels for get -l; repeatable, or KEY=VALUE,KEY=VALUE", CheckLabel)
      ->delimiter(',')
      ->allow_extra_args(false);
  const std::map<std::string, const char*> listed = {
      {"get", "List only jobs with these labels: team=a,stage!=test,owner,!old"},
      {"nodes", "List only nodes with these labels (see get -l)"}};
  for (const auto& [name, about] : listed)
    AddOption(app->get_subcommand(name), "-l,--selector", &line->selector, "SELECTOR", about)
        ->check(CLI::Validator(CheckNoSets, ""));
  const std::map<std::string, const char*> whose = {
      {"cancel", "Cancel jobs with these labels that have not ended (see get -l)"},
      {"pause", "Pause jobs with these labels that have not ended (see get -l)"},
      {"resume", "Resume paused jobs with these labels (see get -l)"},
      {"retry", "Retry failed and cancelled jobs with these labels (see get -l)"},
      {"delete", "Delete ended jobs with these labels (see get -l)"}};
  for (const auto& [name, about] : whose) {
    CLI::App* command = app->get_subcommand(name);
    AddOption(command, "-l,--selector", &line->selector, "SELECTOR", about, CheckNoSets)
        ->check(CLI::Validator(CheckHasPositiveRequirement, ""))
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
  AddOption(events, "--job", &line->job, "JOB", "List only events of this job; a deleted one by its full id");
  AddOption(events, "--node", &line->node, "NODE", "List only events of this node");
  CLI::Option* since =
      AddOption(events, "--since", &line->since, "TIME",
                "List only events since a duration ago (90s, 1h30m, 1d) or a UTC time", CheckSince);
  AddOption(events, "--after", &line->after_event, "SEQUENCE",
            "List only events after this SEQUENCE, without gaps", CheckCursor)
      ->excludes(since);
  events->add_flag("-w,--watch", line->follow, "Watch for new events, across restarts of the coordinator");
}

}  // namespace fsdpd
