#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/json_quote.h"
#include "base/version.h"
#include "client/commands/commands.h"
#include "client/commands/session.h"
#include "client/connect/coordinator_client.h"
#include "client/connect/follow_screen.h"
#include "client/connect/job_choice.h"
#include "client/connect/outcome.h"
#include "client/text/job_description.h"
#include "client/text/message_output.h"
#include "client/text/node_text.h"
#include "client/text/text_table.h"

namespace fsdpd {
namespace {

int RunDescribe(Session* session) {
  FSDPD_ASSIGN_OR_FAIL(const v1::Job job, session, FindJob(&session->client(), session->line().job));
  if (session->line().output != "table") return session->Show(job);
  session->console().out << DescribeJob(job, session->console().clock->Wall());
  return kExitOk;
}

int RunNodes(Session* session) {
  const absl::StatusOr<Selector> selector = SelectorOf(session->line());
  if (!selector.ok()) return session->Fail(selector.status());
  v1::ListNodesRequest request;
  request.set_order_by(session->line().order_by);
  FSDPD_ASSIGN_OR_FAIL(v1::ListNodesResponse response, session, session->client().ListNodes(request));
  auto* const nodes = response.mutable_nodes();
  nodes->erase(std::remove_if(nodes->begin(), nodes->end(),
                              [&](const v1::Node& node) { return !Matches(*selector, node.labels()); }),
               nodes->end());
  const std::string& output = session->line().output;
  Console& console = session->console();
  if (output == "name") {
    for (const v1::Node& node : response.nodes()) console.out << node.name() << "\n";
    return kExitOk;
  }
  if (output != "table" && output != "wide") return session->Show(response);
  console.out << NodeTable({response.nodes().begin(), response.nodes().end()},
                           CoordinatorTimeOf(response, console.clock->Wall()), console.width(),
                           output == "wide");
  return kExitOk;
}

std::string VersionsText(const std::vector<std::pair<std::string, std::string>>& versions,
                         const std::string& output) {
  const auto text = [&output](std::string* out, const std::pair<std::string, std::string>& version) {
    const auto& [end, number] = version;
    if (output == "json") absl::StrAppend(out, JsonQuoted(end), ": ", JsonQuoted(number));
    if (output == "yaml") absl::StrAppend(out, end, ": ", JsonQuoted(number));
    if (output == "table") absl::StrAppend(out, end, "  ", OneLine(number));
  };
  if (output == "json") return absl::StrCat("{", absl::StrJoin(versions, ", ", text), "}\n");
  return absl::StrCat(absl::StrJoin(versions, "\n", text), "\n");
}

int RunVersion(Session* session) {
  const absl::StatusOr<v1::GetVersionResponse> response = session->client().GetVersion({});
  std::vector<std::pair<std::string, std::string>> versions = {{"client", kVersion}};
  if (response.ok()) versions.emplace_back("server", response->version());
  session->console().out << VersionsText(versions, session->line().output);
  return response.ok() ? kExitOk : session->Fail(response.status());
}

// Completes prefixes of job ids, for commands that do not fetch the job first. Returns an exit code after it
// has reported an ambiguous prefix.
std::optional<int> CompleteIds(Session* session, CommandLine* line) {
  static const auto* const kCommands =
      new std::set<std::string>{"watch", "trace", "cancel", "pause", "resume", "retry", "delete", "wait"};
  if (kCommands->count(line->command) == 0) return std::nullopt;
  std::vector<std::string*> ids;
  if (!line->job.empty()) ids.push_back(&line->job);
  for (std::string& id : line->jobs) ids.push_back(&id);
  for (std::string* id : ids) {
    const absl::StatusOr<v1::Job> job = FindJob(&session->client(), *id);
    if (job.ok() && !job->id().empty()) *id = job->id();
    // An ambiguous prefix has no error reason. An unknown id is left to the command, which reports it.
    if (absl::IsNotFound(job.status()) && ReasonOf(job.status()).empty()) return session->Fail(job.status());
  }
  return std::nullopt;
}

}  // namespace

int RunJobCommand(const CommandLine& given, Console* console) {
  CommandLine line = given;
  Session session(line, console);
  if (const absl::Status status = session.client().Connect(); !status.ok()) {
    if (line.command == "version" && line.output == "table") console->out << "client  " << kVersion << "\n";
    return session.Fail(status);
  }
  if (const std::optional<int> code = RunNodeCommand(&session)) return *code;
  if (const std::optional<int> code = RunEventCommand(&session)) return *code;
  if (const std::optional<int> code = CompleteIds(&session, &line)) return *code;
  if (line.command == "wait") return RunWait(&session);
  if (line.command == "top") return RunTop(&session);
  if (line.command == "get") return RunGet(&session);
  if (line.command == "describe") return RunDescribe(&session);
  if (line.command == "watch") return session.Follow(line.job, /*submitted_now=*/false);
  if (line.command == "logs") return RunLogs(&session);
  if (line.command == "trace") return RunTrace(&session);
  if (line.command == "export") return RunExport(&session);
  if (const std::optional<int> code = RunLifecycleCommand(&session)) return *code;
  if (line.command == "nodes") return RunNodes(&session);
  FSDPD_CHECK(line.command == "version");
  return RunVersion(&session);
}

}  // namespace fsdpd
