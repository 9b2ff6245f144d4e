#include "client/flags/list_flags.h"

#include <CLI/CLI.hpp>
#include <map>

#include "client/flags/flag_checks.h"

namespace fsdpd {

void AddListFlags(CLI::App* app, CommandLine* line) {
  const std::map<std::string, const char*> filtered = {
      {"get", "List only matching jobs: 'state = RUNNING AND priority >= 5'"},
      {"nodes", "List only matching nodes: 'connected = true AND free_slots > 0'"},
      {"events", "List only matching events: 'kind = ATTEMPT_FAILED AND cause != PROCESS'"}};
  for (const auto& [name, about] : filtered)
    app->get_subcommand(name)
        ->add_option("--filter", line->filter, about)
        ->check(NotEmpty())
        ->type_name("FILTER");
  const std::map<std::string, const char*> ordered = {
      {"get", "Order by create_time or end_time, \" desc\" reverses; default: create_time desc"},
      {"nodes", "Order by name, slots, free_slots or last_seen_time; \" desc\" reverses"}};
  for (const auto& [name, about] : ordered)
    app->get_subcommand(name)
        ->add_option("--order-by", line->order_by, about)
        ->check(NotEmpty())
        ->type_name("FIELD");
  CLI::App* get = app->get_subcommand("get");
  get->get_option("--order-by")->excludes(get->get_option("--sort-by"));
  for (const char* of_list : {"--filter", "--order-by"}) {
    for (const char* of_one : {"JOB", "--steps", "--timeline"})
      get->get_option(of_list)->excludes(get->get_option(of_one));
  }
  // A named job is shown regardless of its project and state, so a filter would have no effect.
  for (const char* of_list : {"--state", "--selector", "--project", "--array", "--all-projects"})
    get->get_option(of_list)->excludes(get->get_option("JOB"));
  for (const char* name : {"cancel", "pause", "resume", "retry", "delete"}) {
    CLI::App* command = app->get_subcommand(name);
    command->add_option("--etag", line->etag, "Act only if the job still has this `etag` of get -o json")
        ->check(NotEmpty())
        ->type_name("ETAG")
        ->excludes(command->get_option("--selector"));
  }
}

}  // namespace fsdpd
