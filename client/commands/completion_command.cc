// Command `completion`, and the hidden command that its scripts call.
#include <absl/strings/ascii.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/process/cli_app.h"
#include "client/commands/commands.h"
#include "client/commands/contexts.h"
#include "client/commands/session.h"
#include "client/connect/coordinator_client.h"
#include "client/connect/job_choice.h"
#include "client/connect/outcome.h"
#include "client/flags/command_line.h"
#include "client/flags/completion.h"
#include "client/flags/flag_checks.h"
#include "client/flags/parse_command_line.h"
#include "client/flags/plugin_verbs.h"
#include "client/text/job_text.h"

namespace fsdpd {
namespace {

// The user waits for each completion.
constexpr absl::Duration kConnectTimeout = absl::Milliseconds(500);
constexpr absl::Duration kCallTimeout = absl::Milliseconds(500);
constexpr int kMaxJobs = 200;  // One page.

// Reads the flags that select a coordinator from the words before the cursor, which may be an incomplete
// command line.
void ReadAccessFlags(const std::vector<std::string>& words, CommandLine* line) {
  line->flags = AccessFlags(words);
  const std::unique_ptr<CLI::App> app = MakeApp("", "");
  app->allow_extras();
  app->set_help_flag();
  app->add_option("--server", line->server)->envname("FSDPD_SERVER");
  app->add_option("--context", line->context)->envname("FSDPD_CONTEXT");
  app->add_option("--coordinator-ca", line->coordinator_ca)->envname("FSDPD_COORDINATOR_CA");
  app->add_option("--token-file", line->token_file)->envname("FSDPD_TOKEN_FILE");
  try {
    // The last word may be incomplete.
    ParseWords(app.get(), std::vector<std::string>(words.begin(), words.end() - (words.empty() ? 0 : 1)));
  } catch (const CLI::ParseError&) {  // A flag without its value. Values that were read before it are used.
  }
}

bool AcceptsJob(const std::string& command, const v1::Job& job) {
  static const auto* const kOfRunning = new std::set<std::string>{"cancel", "pause", "trace"};
  static const auto* const kOfEnded = new std::set<std::string>{"retry", "delete"};
  if (kOfRunning->count(command) > 0) return !IsEnded(job.state());
  if (kOfEnded->count(command) > 0) return IsEnded(job.state());
  return command != "resume" || job.state() == v1::JOB_STATE_PAUSED || job.state() == v1::JOB_STATE_PAUSING;
}

class Names {
 public:
  explicit Names(CommandLine line) : line_(std::move(line)) {}

  // Empty if the coordinator does not respond in time.
  std::vector<std::string> Of(NameKind kind, const std::string& command) {
    std::vector<std::string> names;
    if (kind == NameKind::kPlugins) {
      const char* path = std::getenv("PATH");
      for (const PluginVerb& verb : PluginVerbs(CommandNames(), path == nullptr ? "" : path))
        names.push_back(verb.name);
      return names;
    }
    if (kind == NameKind::kContexts) {
      const absl::StatusOr<Contexts> contexts = ReadContexts(ContextsPath());
      for (const Context& context : contexts.ok() ? contexts->all : std::vector<Context>())
        names.push_back(context.name);
      return names;
    }
    if (!ReadAccess(&line_).ok()) return names;
    CoordinatorClient::Options options;
    options.call_timeout = kCallTimeout;
    options.connect_timeout = kConnectTimeout;
    options.trusted = line_.trusted;
    options.token = line_.token;
    CoordinatorClient client(line_.server, options);
    if (!client.Connect().ok()) return names;
    if (kind == NameKind::kNodes) {
      const absl::StatusOr<v1::ListNodesResponse> nodes = client.ListNodes({});
      if (!nodes.ok()) return names;
      for (const v1::Node& node : nodes->nodes()) names.push_back(node.name());
      return names;
    }
    const absl::StatusOr<v1::ListJobsResponse> jobs = ListAllJobs(&client, {}, kMaxJobs);
    if (!jobs.ok()) return names;
    for (const v1::Job& job : jobs->jobs()) {
      if (AcceptsJob(command, job)) names.push_back(job.id());
    }
    return names;
  }

 private:
  CommandLine line_;
};

}  // namespace

int RunCompletion(const CommandLine& line, Console* console) {
  console->out << CompletionScript(line.shell);
  return kExitOk;
}

int RunComplete(const std::vector<std::string>& words, Console* console) {
  CommandLine unused;
  const std::unique_ptr<CLI::App> app = MakeApp("", "fsdpctl");
  BuildApp(app.get(), &unused);
  CommandLine access;
  ReadAccessFlags(words, &access);
  Names names(std::move(access));
  const auto source = [&](NameKind kind, const std::string& command) { return names.Of(kind, command); };
  for (const std::string& each : Candidates(*app, words, source)) console->out << each << "\n";
  return kExitOk;
}

}  // namespace fsdpd
