#include "client/event_flags.h"

#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>

#include <CLI/CLI.hpp>
#include <map>

#include "client/flag_checks.h"

namespace fsdpd {
namespace {

std::string CheckCursor(std::string& text) {
  int64_t cursor = 0;
  if (absl::SimpleAtoi(text, &cursor) && cursor >= 0) return "";
  return absl::StrCat("'", text, "' is no cursor: it is a SEQUENCE that was shown before");
}

// A selector of a command that changes jobs must have a positive rule. With only negative rules it would
// match almost all jobs, because most jobs have no labels.
std::string CheckHasPositiveRule(std::string& text) {
  for (const absl::string_view rule : absl::StrSplit(text, ',')) {
    if (!rule.empty() && rule.find('!') == absl::string_view::npos) return "";
  }
  return absl::StrCat("'", text, "' says only what jobs have not: add a label that they have, as in team=a");
}

// Rejects the set-based selectors of Kubernetes.
std::string CheckNoSets(std::string& text) {
  for (const char* word : {" in ", " in(", " notin ", " notin("}) {
    if (text.find(word) == std::string::npos) continue;
    return absl::StrCat("'", text,
                        "' is not taken: a selector has no sets (in, notin), but key=value, key!=value, "
                        "key and !key, with commas between them");
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
      ->add_option("--label", line->labels,
                   "What the job is found by (get -l); may be repeated, or KEY=VALUE,KEY=VALUE")
      ->delimiter(',')
      ->check(CLI::Validator(CheckLabel, ""))
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  app->get_subcommand("get")
      ->add_option("-l,--selector", line->selector,
                   "Only jobs with these labels: team=a,stage!=test,owner,!old")
      ->check(NotEmpty())
      ->check(CLI::Validator(CheckNoSets, ""))
      ->type_name("SELECTOR");
  const std::map<std::string, const char*> whose = {
      {"cancel", "Jobs with these labels that have not ended, as of `get -l`"},
      {"pause", "Jobs with these labels that have not ended, as of `get -l`"},
      {"resume", "Paused jobs with these labels, as of `get -l`"},
      {"retry", "Failed and cancelled jobs with these labels, as of `get -l`"},
      {"delete", "Ended jobs with these labels, as of `get -l`"}};
  for (const auto& [name, about] : whose) {
    CLI::App* command = app->get_subcommand(name);
    command->add_option("-l,--selector", line->selector, about)
        ->check(CLI::Validator(CheckNoSets, ""))
        ->check(CLI::Validator(CheckHasPositiveRule, ""))
        ->type_name("SELECTOR")
        ->excludes(command->get_option("JOB")->required(false));
  }
}

std::string MissingJobError(const CommandLine& line) {
  if (!line.etag.empty() && line.jobs.size() != 1) return "--etag is of one JOB; name it alone";
  if (!line.job.empty() || !line.jobs.empty() || !line.selector.empty()) return "";
  if (line.command == "cancel" && line.array.empty()) return "JOB is required, or --array, or --selector";
  if (line.command == "pause" || line.command == "resume" || line.command == "retry" ||
      line.command == "delete")
    return "JOB is required, or --selector";
  return "";
}

void AddEventCommands(CLI::App* app, CommandLine* line) {
  CLI::App* events = AddCommand(
      app, "events",
      "List what has happened to jobs and nodes, oldest first: submits, launches, failures with their cause, "
      "checkpoints, pauses, cordons, preflights, drains. With -w, go on with each new one.",
      "  fsdpctl events --since 1h\n"
      "  fsdpctl events --job tiny-llama-k3x9q2\n"
      "  fsdpctl events --node node-7 -w\n"
      "  fsdpctl events -w --after 4711 -o json");
  events->add_option("--job", line->job, "Only this job's; a deleted one has them too, by its whole id")
      ->check(NotEmpty())
      ->type_name("JOB");
  events->add_option("--node", line->node, "Only those that name this node")
      ->check(NotEmpty())
      ->type_name("NODE");
  CLI::Option* since =
      events
          ->add_option("--since", line->since,
                       "Only those since then: how long ago (90s, 1h30m, 1d), or a time in UTC")
          ->check(CLI::Validator(CheckSince, ""))
          ->type_name("TIME");
  events->add_option("--after", line->after_event, "Only those after this SEQUENCE; none between is missed")
      ->check(CLI::Validator(CheckCursor, ""))
      ->type_name("SEQUENCE")
      ->excludes(since);
  events->add_flag("-w,--watch", line->follow, "Go on with each new one, over restarts of the coordinator");
}

}  // namespace fsdpd
