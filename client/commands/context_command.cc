// Command `context`: lists named coordinators, and selects the current one.
#include <absl/strings/str_cat.h>

#include <cstdlib>

#include "base/process/error_line.h"
#include "client/commands/commands.h"
#include "client/commands/contexts.h"
#include "client/connect/outcome.h"
#include "client/text/text_table.h"

namespace fsdpd {
namespace {

std::string OrDash(const std::string& text) { return text.empty() ? "-" : OneLine(text); }

int FailUsage(const absl::Status& status, Console* console) {
  console->err << "fsdpctl: " << WithErrorId(status.message(), "INVALID_CONTEXT") << "\n";
  return kExitUsage;
}

int List(const Contexts& contexts, Console* console) {
  TextTable table({"CURRENT", "NAME", "SERVER", "COORDINATOR_CA", "TOKEN_FILE"});
  for (const Context& context : contexts.all) {
    table.Add({context.name == contexts.current ? "*" : "", OneLine(context.name), OneLine(context.server),
               OrDash(context.coordinator_ca), OrDash(context.token_file)});
  }
  console->out << table.Render(0, console->width());
  if (contexts.all.empty()) console->err << "no contexts in " << contexts.path << "\n";
  if (!contexts.current.empty() && !contexts.Find(contexts.current).ok())
    console->err << "the current context, " << OneLine(contexts.current) << ", does not exist\n";
  return kExitOk;
}

int Show(const Contexts& contexts, const std::string& name, Console* console) {
  if (name.empty()) {
    console->err << "fsdpctl: no current context; set one with `fsdpctl context use NAME`; contexts file: "
                 << contexts.path << " [INVALID_CONTEXT]\n";
    return kExitUsage;
  }
  const absl::StatusOr<Context> context = contexts.Find(name);
  if (!context.ok()) return FailUsage(context.status(), console);
  console->out << "name:           " << OneLine(context->name)
               << "\nserver:         " << OneLine(context->server)
               << "\ncoordinator_ca: " << OrDash(context->coordinator_ca)
               << "\ntoken_file:     " << OrDash(context->token_file) << "\n";
  for (const char* variable : {"FSDPD_SERVER", "FSDPD_COORDINATOR_CA", "FSDPD_TOKEN_FILE", "FSDPD_TOKEN"}) {
    if (std::getenv(variable) != nullptr) console->err << variable << " is set and overrides the context\n";
  }
  return kExitOk;
}

}  // namespace

int RunContextCommand(const CommandLine& line, Console* console) {
  const absl::StatusOr<Contexts> contexts = ReadContexts(ContextsPath());
  if (!contexts.ok()) return FailUsage(contexts.status(), console);
  if (line.action == "list") return List(*contexts, console);
  const std::string& current = line.context.empty() ? contexts->current : line.context;
  if (line.action == "show")
    return Show(*contexts, line.name_of_context.empty() ? current : line.name_of_context, console);
  const absl::StatusOr<Context> chosen = contexts->Find(line.name_of_context);
  if (!chosen.ok()) return FailUsage(chosen.status(), console);
  if (const absl::Status used = UseContext(contexts->path, chosen->name); !used.ok())
    return FailUsage(used, console);
  console->err << "current context: " << OneLine(chosen->name) << " (" << OneLine(chosen->server) << ")\n";
  return kExitOk;
}

}  // namespace fsdpd
