// Node commands: cordon, uncordon, preflight, node delete, and describe node.
#include <absl/strings/str_cat.h>

#include <optional>
#include <utility>

#include "base/check.h"
#include "client/commands/commands.h"
#include "client/commands/session.h"
#include "client/connect/coordinator_client.h"
#include "client/connect/job_choice.h"
#include "client/connect/outcome.h"
#include "client/text/job_text.h"
#include "client/text/message_output.h"
#include "client/text/node_text.h"

namespace fsdpd {
namespace {

// A preflight takes at least ten seconds, and each poll fetches all nodes with their results.
constexpr auto kPollInterval = std::chrono::seconds(1);

void PrintNode(Session* session, const v1::Node& node, const std::string& table) {
  const std::string& output = session->line().output;
  session->console().out << (output == "table" ? table : Rendered(node, output));
}

absl::StatusOr<v1::Node> CordonOne(Session* session, const std::string& node) {
  v1::CordonNodeRequest request;
  request.set_node(node);
  request.set_reason(session->line().reason);
  FSDPD_ASSIGN_OR_RETURN(const v1::CordonNodeResponse response, session->client().CordonNode(request));
  return response.node();
}

absl::StatusOr<v1::Node> UncordonOne(Session* session, const std::string& node) {
  v1::UncordonNodeRequest request;
  request.set_node(node);
  FSDPD_ASSIGN_OR_RETURN(const v1::UncordonNodeResponse response, session->client().UncordonNode(request));
  return response.node();
}

// Runs a call for each node. An error does not stop the loop; the exit code is that of the last error. With
// -o json, several nodes are one document, as with `nodes`.
int ForEachNode(Session* session,
                absl::StatusOr<v1::Node> (*run)(Session* session, const std::string& node)) {
  const CommandLine& line = session->line();
  std::ostream& out = session->console().out;
  int code = kExitOk;
  v1::ListNodesResponse nodes;
  for (const std::string& name : line.node_names) {
    absl::StatusOr<v1::Node> node = run(session, name);
    if (!node.ok()) {
      code = session->Fail(node.status());
    } else if (line.output == "table") {
      out << node->name() << (node->has_cordon() ? " cordoned\n" : " open\n");
    } else {
      *nodes.add_nodes() = *std::move(node);
    }
  }
  if (nodes.nodes().empty()) return code;
  out << (line.node_names.size() == 1 ? Rendered(nodes.nodes(0), line.output)
                                      : RenderedLists(nodes, line.output));
  return code;
}

int RunPreflight(Session* session) {
  Console& console = session->console();
  v1::PreflightNodeRequest request;
  request.set_node(session->line().node);
  FSDPD_ASSIGN_OR_FAIL(const v1::PreflightNodeResponse begun, session,
                       session->client().PreflightNode(request));
  v1::Node node = begun.node();
  absl::Time date = console.clock->Wall();
  Outage outage;
  while (node.in_preflight()) {
    if (console.interrupt->WaitFor(kPollInterval)) return kExitInterrupted;
    date = console.clock->Wall();  // Of a coordinator that does not return its time.
    const absl::StatusOr<v1::Node> now = FindNode(&session->client(), request.node(), &date);
    if (outage.IsTolerable(now.status())) continue;
    if (!now.ok()) return session->Fail(now.status());
    node = *now;
  }
  const bool measured = node.preflight().unix_nanos() != begun.node().preflight().unix_nanos();
  if (!measured) {
    console.err
        << "fsdpctl: " << request.node()
        << " could not be measured: it was not ready, or a slot was in use; see the log of its agent\n";
    return kExitFailed;
  }
  std::string text = PreflightText(node, date);
  if (node.preflight().violations().empty() && node.has_cordon())
    absl::StrAppend(&text, node.name(), " remains cordoned until fsdpctl uncordon ", node.name(), "\n");
  PrintNode(session, node, text);
  return node.preflight().violations().empty() ? kExitOk : kExitFailed;
}

// Reports that a pausing job no longer waits for ranks on the deleted node.
void ReportPausedJob(Session* session, const std::string& id) {
  const absl::StatusOr<v1::Job> job = GetJob(&session->client(), id);
  if (!job.ok()) return;
  const v1::JobState state = job->state();
  if (state != v1::JOB_STATE_PAUSING && state != v1::JOB_STATE_PAUSED) return;
  session->console().err << "fsdpctl: " << id << ", which had ranks there, is " << StateName(state)
                         << " and no longer waits for them; `fsdpctl resume " << id << "` continues it\n";
}

int RunDeleteNode(Session* session) {
  v1::DeleteNodeRequest request;
  request.set_node(session->line().node);
  request.set_force(session->line().force);
  FSDPD_ASSIGN_OR_FAIL(const v1::DeleteNodeResponse response, session, session->client().DeleteNode(request));
  PrintNode(session, response.node(), absl::StrCat(response.node().name(), " deleted\n"));
  for (const std::string& job : response.node().unconfirmed_jobs()) ReportPausedJob(session, job);
  return kExitOk;
}

int RunDescribeNode(Session* session) {
  absl::Time date = session->console().clock->Wall();
  FSDPD_ASSIGN_OR_FAIL(const v1::Node node, session,
                       FindNode(&session->client(), session->line().node, &date));
  PrintNode(session, node, DescribeNode(node, date));
  return kExitOk;
}

}  // namespace

std::optional<int> RunNodeCommand(Session* session) {
  const CommandLine& line = session->line();
  if (line.command == "cordon") return ForEachNode(session, CordonOne);
  if (line.command == "uncordon") return ForEachNode(session, UncordonOne);
  if (line.command == "preflight") return RunPreflight(session);
  if (line.command == "node") return RunDeleteNode(session);
  if (line.command == "describe" && line.job == "node" && line.node.empty()) {
    session->console().err
        << "fsdpctl: describe requires JOB, or `node NODE`; `fsdpctl nodes` lists the nodes [INVALID_FLAG]\n";
    return kExitUsage;
  }
  if (line.command != "describe" || line.node.empty()) return std::nullopt;
  if (line.job == "node") return RunDescribeNode(session);
  session->console().err << "fsdpctl: describe requires exactly one JOB, or `node NODE` [INVALID_FLAG]\n";
  return kExitUsage;
}

}  // namespace fsdpd
