#include "client/flags/list_flags.h"

#include <map>

#include "client/flags/flag_checks.h"

namespace fsdpd {

void AddListFlags(CLI::App* app, CommandLine* line) {
  const std::map<std::string, const char*> ordered = {
      {"get", "Order by create_time or end_time, \" desc\" reverses; default: create_time desc"},
      {"nodes", "Order by name, slots, free_slots or last_seen_time; \" desc\" reverses"}};
  for (const auto& [name, about] : ordered)
    AddOption(app->get_subcommand(name), "--order-by", &line->order_by, "FIELD", about);
  CLI::App* get = app->get_subcommand("get");
  get->get_option("--order-by")->excludes(get->get_option("--sort-by"));
  for (const char* of_one : {"JOB", "--steps", "--timeline"})
    get->get_option("--order-by")->excludes(get->get_option(of_one));
  // A named job is shown regardless of its project and state, so these flags would have no effect.
  for (const char* of_list : {"--state", "--selector", "--project", "--array", "--all-projects"})
    get->get_option(of_list)->excludes(get->get_option("JOB"));
  for (const char* name : {"cancel", "pause", "resume", "retry", "delete"}) {
    CLI::App* command = app->get_subcommand(name);
    AddOption(command, "--etag", &line->etag, "ETAG",
              "Act only if the job still has this `etag` of get -o json")
        ->excludes(command->get_option("--selector"));
  }
}

}  // namespace fsdpd
