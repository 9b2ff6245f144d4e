#include "client/event_flags.h"

#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>

#include <CLI/CLI.hpp>
#include <map>

#include "base/call_limits.h"
#include "client/flag_checks.h"

namespace fsdpd {
namespace {

std::string CheckCursor(std::string& text) {
  int64_t cursor = 0;
  if (absl::SimpleAtoi(text, &cursor) && cursor >= 0) return "";
  return absl::StrCat("'", text, "' is no cursor: it is a SEQUENCE that was shown before");
}

// Who acts on what he has not named says what the jobs have, not only what they have not: most jobs have no
// label of any kind.
std::string CheckActed(std::string& text) {
  for (const absl::string_view rule : absl::StrSplit(text, ',')) {
    if (!rule.empty() && rule.find('!') == absl::string_view::npos) return "";
  }
  return absl::StrCat("'", text, "' says only what jobs have not: add a label that they have, as in team=a");
}

// Kubernetes' sets.
std::string CheckRules(std::string& text) {
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

void AddDrain(CLI::App* app, CommandLine* line) {
  CLI::App* drain = AddCommand(app, "drain",
                               "Empty a node: no job is placed there, and those that are there save, leave "
                               "and go on elsewhere, without "
                               "an attempt that counts. `uncordon` opens it again.",
                               "  fsdpctl drain node-7 --reason \"gets a new disk\" --wait\n"
                               "  fsdpctl drain node-7 --force");
  drain->add_option("NODE", line->node, "The node's name")->required()->check(NotEmpty())->type_name("");
  drain->add_option("--reason", line->reason, "Shown with the node, and to jobs that wait for it")
      ->type_name("TEXT");
  drain
      ->add_option("--grace", line->grace_seconds,
                   "Until SIGKILL of ranks that have not saved; default 600, at most 3600")
      ->check(WholeNumber(1, kMaxGraceSeconds))
      ->type_name("SECONDS");
  drain->add_flag("--force", line->force, "Jobs that write no checkpoints leave too, and begin anew");
  CLI::Option* wait = drain->add_flag("--wait", line->wait, "Return when nothing of any job is left there");
  drain
      ->add_option("--timeout", line->patience_seconds,
                   "With --wait: for how long at most; default: for ever")
      ->needs(wait)
      ->check(CLI::Validator(CheckPatience, ""))
      ->type_name("SECONDS");
}

void AddNode(CLI::App* app, CommandLine* line) {
  CLI::App* node = AddCommand(app, "node", "Remove a node whose agent is not coming back.",
                              "  fsdpctl node delete node-7\n"
                              "  fsdpctl node delete node-7 --force");
  node->require_subcommand(1);
  CLI::App* remove = AddCommand(
      node, "delete",
      "Delete a node that is lost or has left, with its cordon and preflight result. An agent of that name "
      "may register again.",
      "  fsdpctl node delete node-7\n"
      "  fsdpctl node delete node-7 --force");
  remove->add_option("NODE", line->node, "The node's name")->required()->check(NotEmpty())->type_name("");
  remove->add_flag("--force", line->force, "Delete it although ranks on the lost node may still run");
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
      ->check(CLI::Validator(CheckRules, ""))
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
        ->check(CLI::Validator(CheckRules, ""))
        ->check(CLI::Validator(CheckActed, ""))
        ->type_name("SELECTOR")
        ->excludes(command->get_option("JOB")->required(false));
  }
}

std::string MissingJob(const CommandLine& line) {
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
  AddDrain(app, line);
  AddNode(app, line);
}

}  // namespace fsdpd
