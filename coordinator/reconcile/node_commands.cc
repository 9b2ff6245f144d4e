#include "coordinator/reconcile/node_commands.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include <algorithm>
#include <vector>

#include "base/check.h"
#include "base/log.h"
#include "coordinator/nodes/known_node.h"
#include "coordinator/request/errors.h"

namespace fsdpd {
namespace {

absl::Status NotIdle(const std::string& node, const std::string& text) {
  return WrongState("NODE_NOT_IDLE", absl::StrCat("nodes/", node), text);
}

}  // namespace

bool NodeCommands::IsKnown(const std::string& node) const {
  const std::vector<NodeView> nodes = parts_.nodes->Snapshot();
  return std::any_of(nodes.begin(), nodes.end(),
                     [&](const NodeView& each) { return each.info.node() == node; });
}

absl::Status NodeCommands::Cordon(const std::string& node, const std::string& reason) {
  const std::optional<v1::Cordon> before = parts_.cordons->Find(node);
  if (!IsKnown(node) && !before.has_value()) return NodeNotFound(node);
  // A request without a reason does not overwrite a user's reason, but replaces an automatic cordon.
  if (reason.empty() && before.has_value() && !before->automatic()) return absl::OkStatus();
  v1::Cordon cordon;
  cordon.set_reason(reason.empty() && before.has_value() ? before->reason() : reason);
  cordon.set_unix_nanos(absl::ToUnixNanos(parts_.clock->Wall()));
  // A new reason does not end a drain.
  if (before.has_value() && before->has_drain()) *cordon.mutable_drain() = before->drain();
  FSDPD_RETURN_IF_ERROR(parts_.cordons->Set(node, cordon));
  LogInfo("node cordoned node=%s reason=%s", node, cordon.reason());
  return absl::OkStatus();
}

absl::Status NodeCommands::Uncordon(const std::string& node) {
  if (!parts_.cordons->Find(node).has_value()) return IsKnown(node) ? absl::OkStatus() : NodeNotFound(node);
  const std::optional<v1::NodePreflight> measured = parts_.preflights->results().Find(node);
  absl::Status lifted = AcceptMeasured(node);
  if (lifted.ok()) lifted = parts_.cordons->Lift(node, parts_.clock->Wall());
  if (!lifted.ok()) {
    if (measured.has_value()) parts_.preflights->results().Set(node, *measured);
    return lifted;
  }
  parts_.health->ClearFailures(node);
  parts_.drains->Forget(node);
  LogInfo("node uncordoned node=%s", node);
  return lifted;
}

// Stored before the cordon is lifted: otherwise a restarted coordinator would measure the node again, and
// cordon it for a result that a user has accepted.
absl::Status NodeCommands::AcceptMeasured(const std::string& node) {
  const v1::NodePreflight measured = parts_.preflights->results().Find(node).value_or(v1::NodePreflight());
  if (measured.violations().empty() || measured.accepted()) return absl::OkStatus();
  parts_.preflights->results().Accept(node);
  parts_.presence->Read();
  return parts_.records->Store();
}

absl::Status NodeCommands::Drain(const std::string& node, const std::string& reason, int64_t grace_ms,
                                 bool force) {
  if (!IsKnown(node) && !parts_.cordons->Find(node).has_value()) return NodeNotFound(node);
  return parts_.drains->Start(node, reason, grace_ms, force);
}

absl::Status NodeCommands::Preflight(const std::string& node) {
  parts_.presence->Read();
  const NodeView* view = parts_.presence->Find(node);
  if (view == nullptr) return NodeNotFound(node);
  const auto not_idle = [&](const std::string& why) { return NotIdle(node, absl::StrCat(node, " ", why)); };
  if (parts_.preflights->IsMeasuring(node)) return absl::OkStatus();
  if (!view->connected) return not_idle(absl::StrCat("is ", StateOf(*view), ": it cannot be measured now"));
  if (!view->info.preflights())
    return WrongState("AGENT_TOO_OLD", absl::StrCat("nodes/", node),
                      absl::StrCat("node ", node, ": its agent does not support preflight (release ",
                                   view->info.version(), "); upgrade the agent"));
  if (parts_.attempts->HasRefusedRanks(node))
    return not_idle("has ranks that are leaving; retry in a few seconds");
  for (const NodeSlots& slots : parts_.slots->Slots()) {
    if (slots.name == node && !slots.jobs.empty())
      return not_idle(absl::StrCat("is in use by ", absl::StrJoin(slots.jobs, ", "),
                                   "; preflight requires an idle node"));
  }
  parts_.preflights->Measure(node);
  return absl::OkStatus();
}

absl::Status NodeCommands::CheckDeletable(const std::string& node, bool force) const {
  const NodeView* known = parts_.presence->Find(node);
  if (known == nullptr && !parts_.cordons->Find(node).has_value()) return NodeNotFound(node);
  const NodeView view = known == nullptr ? NodeView() : *known;
  const auto not_idle = [&](const std::string& why) {
    return NotIdle(node, absl::StrCat("node ", node, " ", why));
  };
  if (view.connected) return not_idle("is ready: stop its agent before you delete the node");
  if (!view.left && parts_.presence->Of(node) != Presence::kLost)
    return not_idle("is not ready, but not lost yet: its agent may reconnect; retry in a few seconds");
  // A pausing job would wait for the deleted node forever.
  const auto pausing_of = [&](const std::vector<std::string>& jobs) {
    std::vector<std::string> pausing;
    for (const std::string& id : jobs) {
      const LiveJob* live = parts_.jobs->Find(id);
      if (live != nullptr && live->job.state() == v1::JOB_STATE_PAUSING) pausing.push_back(id);
    }
    return absl::StrJoin(pausing, ", ");
  };
  if (const std::vector<std::string> jobs = parts_.slots->JobsOn(node); !jobs.empty()) {
    const std::string pausing = pausing_of(jobs);
    return not_idle(absl::StrCat(
        "hosts ranks of ", absl::StrJoin(jobs, ", "),
        pausing.empty() ? ": wait until the job has left the node, or cancel it"
                        : absl::StrCat(": `fsdpctl resume` continues the pausing jobs (", pausing,
                                       ") without the node, `fsdpctl cancel` ends them")));
  }
  if (view.unconfirmed_jobs.empty() || force) return absl::OkStatus();
  const std::string pausing = pausing_of(view.unconfirmed_jobs);
  return Refusal(
      absl::StatusCode::kFailedPrecondition, "RANKS_UNCONFIRMED",
      absl::StrCat("node ", node, " was lost with ranks of ", absl::StrJoin(view.unconfirmed_jobs, ", "),
                   ", which may still run; make sure that the machine is off or has no fsdpd-rank "
                   "process left, then delete the node with --force",
                   pausing.empty()
                       ? ""
                       : absl::StrCat("; ", pausing, " is paused then, and `fsdpctl resume` continues it")),
      {{"jobs", absl::StrJoin(view.unconfirmed_jobs, ",")}});
}

absl::Status NodeCommands::Delete(const std::string& node, bool force) {
  parts_.presence->Read();
  FSDPD_RETURN_IF_ERROR(CheckDeletable(node, force));
  const NodeView* view = parts_.presence->Find(node);
  const bool is_known = view != nullptr;
  const std::vector<std::string> unconfirmed = is_known ? view->unconfirmed_jobs : std::vector<std::string>();
  // Forget first: the event is stored only for a node that is deleted.
  if (!parts_.nodes->Forget(node)) {
    return absl::UnavailableError(
        absl::StrCat("node ", node, ": not deleted, its agent has just registered; stop its agent first"));
  }
  if (const absl::Status stored = parts_.records->Delete(node, is_known, unconfirmed); !stored.ok()) {
    if (is_known) parts_.nodes->Restore(*view);
    return stored;
  }
  parts_.forget_node(node);
  parts_.drains->Forget(node);
  parts_.health->Delete(node);
  parts_.preflights->Delete(node);
  parts_.presence->Read();
  LogInfo("node deleted node=%s unconfirmed_jobs=%s", node, absl::StrJoin(unconfirmed, ","));
  if (!parts_.cordons->Find(node).has_value()) return absl::OkStatus();
  return parts_.cordons->Lift(node, parts_.clock->Wall(), "the node is deleted");
}

}  // namespace fsdpd
