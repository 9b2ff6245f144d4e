// Reconciler: storing and deleting nodes. The stored nodes let the next process of the coordinator know which
// nodes are missing, their preflight results, and which jobs may still have ranks on a lost node.
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_split.h>
#include <absl/strings/strip.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "coordinator/nodes/known_node.h"
#include "coordinator/reconcile/reconciler.h"
#include "coordinator/request/errors.h"

namespace fsdpd {
namespace {

// At most after a change of a node; at least to update the dates when nodes were last seen.
constexpr absl::Duration kAtMostEvery = absl::Seconds(1), kAtLeastEvery = absl::Minutes(10);
constexpr int kMaxDeletedHosts = 64;             // Per job, because its reason names all of them.
constexpr size_t kMeasuredAt = 3, kRevoked = 8;  // Indices of a NodeRecord.

// Messages of NODE_DELETED events, which WasDeletedWithout() reads.
constexpr char kByForce[] = "by force: ranks of ", kNotEnded[] = " were not known to have ended";
constexpr char kOnlyCordon[] = "only its cordon was left";

v1::Event Measured(const std::string& node, const v1::NodePreflight& preflight) {
  const bool passed = preflight.violations().empty();
  v1::Event event;
  event.set_unix_nanos(preflight.unix_nanos());
  event.set_kind(passed ? v1::EVENT_KIND_PREFLIGHT_PASSED : v1::EVENT_KIND_PREFLIGHT_FAILED);
  event.set_node(node);
  event.set_message(passed ? "passed all limits" : absl::StrJoin(preflight.violations(), "; "));
  return event;
}

v1::Event Revoked(const std::string& node, const std::string& serial, absl::Time now) {
  v1::Event event;
  event.set_unix_nanos(absl::ToUnixNanos(now));
  event.set_kind(v1::EVENT_KIND_CERTIFICATE_REVOKED);
  event.set_node(node);
  event.set_message(absl::StrCat("its certificate with serial number ", serial, " is revoked"));
  return event;
}

}  // namespace

std::map<std::string, Reconciler::NodeRecord> Reconciler::NodeRecords() const {
  std::map<std::string, NodeRecord> marks;
  for (const auto& [name, view] : views_) {
    const Preflights::Version measured = preflights_.VersionOf(name);
    marks[name] = {view.stream_generation,
                   view.connected,
                   view.left,
                   measured.unix_nanos,
                   measured.accepted,
                   view.unconfirmed_jobs,
                   node_failures_.CountedAt(name),
                   HealthySince(name),
                   view.revoked_serial,
                   measurements_.count(name) > 0};
  }
  return marks;
}

void Reconciler::RememberNodes() {
  if (lease_.now() - nodes_remembered_at_ < kAtMostEvery) return;
  const bool all = lease_.now() - nodes_dated_at_ >= kAtLeastEvery;
  if (all) nodes_dated_at_ = lease_.now();
  const absl::Status stored = StoreNodes(all);
  // Retried at the next call.
  if (std::exchange(nodes_stored_, stored.ok()) && !stored.ok())
    LogWarning("node records were not stored; retrying error=%s", stored.message());
}

// Writes only changed nodes: thousands of nodes have some megabytes.
absl::Status Reconciler::StoreNodes(bool all) {
  std::map<std::string, NodeRecord> marks = NodeRecords();
  v1::ListNodesResponse changed;
  Events news;
  for (const auto& [name, mark] : marks) {
    const auto it = nodes_remembered_.find(name);
    if (!all && it != nodes_remembered_.end() && it->second == mark) continue;
    v1::Node* const node = changed.add_nodes();
    *node = NodeOf(views_.at(name), *parts_.clock);
    preflights_.MarkIn(node);
    MarkStanding(node);
    const int64_t measured = std::get<kMeasuredAt>(mark);
    const std::string& revoked = std::get<kRevoked>(mark);
    const bool told = it != nodes_remembered_.end() && std::get<kRevoked>(it->second) == revoked;
    if (!revoked.empty() && !told) news.push_back(Revoked(name, revoked, parts_.clock->Wall()));
    const int64_t before = it == nodes_remembered_.end() ? 0 : std::get<kMeasuredAt>(it->second);
    if (measured != 0 && measured != before) news.push_back(Measured(name, node->preflight()));
  }
  std::vector<std::string> gone;
  for (const auto& [name, mark] : nodes_remembered_) {
    if (marks.count(name) == 0) gone.push_back(name);
  }
  if (changed.nodes().empty() && gone.empty()) return absl::OkStatus();
  nodes_remembered_at_ = lease_.now();
  FSDPD_RETURN_IF_ERROR(parts_.store->UpdateNodes(changed, gone, news));
  nodes_remembered_ = std::move(marks);
  return absl::OkStatus();
}

// Called before an attempt is forgotten. On a node that was lost before its agent reported the end of the
// attempt's ranks, these may still run: DeleteNode() asks for confirmation before it drops the only record of
// that.
void Reconciler::KeepUnconfirmed(const AttemptFacts& facts) {
  for (const NodePart& part : facts.parts) {
    if (part.stopped || PresenceAt(part.node) != Presence::kLost) continue;
    // Its agent registered with ranks of an earlier attempt, did not report which, and was lost again.
    bool unconfirmed = part.ranks == 0;
    for (int rank = part.first_rank; rank < part.first_rank + part.ranks; ++rank)
      unconfirmed |= !facts.ranks()[rank].exit.has_value();
    if (!unconfirmed) continue;
    parts_.nodes->AddUnconfirmed(part.node, facts.ref.job,
                                 [this](const std::string& job) { return HasEnded(job); });
  }
}

std::vector<std::string> Reconciler::JobsWithRanksOn(const std::string& node) const {
  std::set<std::string> jobs;
  for (const auto& [ref, facts] : attempts_) {
    for (const NodePart& part : facts.parts) {
      if (part.node == node && !part.stopped) jobs.insert(ref.job);
    }
  }
  for (const auto& [id, live] : jobs_) {
    for (const v1::Job::Placement& held : live.job.reserved_nodes()) {
      if (held.node() == node) jobs.insert(id);
    }
  }
  return {jobs.begin(), jobs.end()};
}

absl::Status Reconciler::CheckDeletable(const std::string& node, bool force) const {
  const auto it = views_.find(node);
  if (it == views_.end() && !cordons_.Find(node).has_value()) return NodeNotFound(node);
  const NodeView view = it == views_.end() ? NodeView() : it->second;
  const auto not_idle = [&](const std::string& why) {
    return WrongState("NODE_NOT_IDLE", absl::StrCat("nodes/", node), absl::StrCat("node ", node, " ", why));
  };
  if (view.connected) return not_idle("is ready: stop its agent before you delete the node");
  if (!view.left && PresenceAt(node) != Presence::kLost)
    return not_idle("is not ready, but not lost yet: its agent may reconnect; retry in a few seconds");
  // A pausing job would wait for the deleted node forever.
  const auto pausing_of = [&](const std::vector<std::string>& jobs) {
    std::vector<std::string> pausing;
    for (const std::string& id : jobs) {
      const auto job = jobs_.find(id);
      if (job != jobs_.end() && job->second.job.state() == v1::JOB_STATE_PAUSING) pausing.push_back(id);
    }
    return absl::StrJoin(pausing, ", ");
  };
  if (const std::vector<std::string> jobs = JobsWithRanksOn(node); !jobs.empty()) {
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

// Called before the node is deleted: afterwards only the jobs know that their ranks may still run there. The
// record only improves a reason, so one that cannot be read, or is too large to store, does not block the
// deletion.
absl::Status Reconciler::KeepDeletedHost(const std::string& node, const std::vector<std::string>& jobs) {
  for (const std::string& id : jobs) {
    const auto live = jobs_.find(id);
    absl::StatusOr<v1::Job> job = live == jobs_.end() ? parts_.store->Get(id) : live->second.job;
    absl::Status stored = job.status();
    if (job.ok()) {
      auto* hosts = job->mutable_deleted_hosts();
      if (std::count(hosts->begin(), hosts->end(), node) > 0) continue;
      *hosts->Add() = node;
      if (hosts->size() > kMaxDeletedHosts) hosts->DeleteSubrange(0, 1);
      job->set_revision(job->revision() + 1);
      stored = parts_.store->Update(*job);
    }
    if (absl::IsNotFound(stored)) continue;
    if (absl::IsDataLoss(stored) || absl::IsOutOfRange(stored)) {
      LogWarning("deleted node was not recorded in a job node=%s job=%s error=%s", node, id,
                 stored.message());
    } else {
      FSDPD_RETURN_IF_ERROR(stored);
    }
    if (job.ok() && live != jobs_.end()) Adopt(&live->second, *std::move(job), std::string(stored.message()));
  }
  return absl::OkStatus();
}

// The node has registered again and reported each rank that still runs there. If it is deleted once more, it
// must not be named for the ranks that it had before.
void Reconciler::ForgetDeletedHost(const std::string& node) {
  for (auto& [id, live] : jobs_) {
    auto* hosts = live.job.mutable_deleted_hosts();
    const auto it = std::find(hosts->begin(), hosts->end(), node);
    if (it == hosts->end()) continue;
    hosts->erase(it);
    live.job.set_revision(live.job.revision() + 1);
    MarkUnsaved(&live);
    parts_.board->Publish(Shown(live));
  }
}

// Whether the newest deletion of the node was without unconfirmed ranks of the job: the node had registered
// since the deletion that Job.deleted_hosts records. The node list no longer knows, but the event log does.
bool Reconciler::WasDeletedWithout(const std::string& node, const std::string& job) const {
  EventQuery query;
  query.node = node;
  query.newest_first = true;
  query.limit = 10;  // Gaps match every filter.
  query.filter = [](const v1::Event& event) {
    return event.kind() == v1::EVENT_KIND_NODE_DELETED && event.message() != kOnlyCordon;
  };
  const absl::StatusOr<EventPage> page = parts_.store->events().Read(query);
  if (!page.ok()) return false;
  for (const v1::Event& event : page->events) {
    if (event.kind() != v1::EVENT_KIND_NODE_DELETED) continue;
    absl::string_view jobs = event.message();
    if (!absl::ConsumePrefix(&jobs, kByForce)) return true;
    const std::vector<absl::string_view> named = absl::StrSplit(absl::StripSuffix(jobs, kNotEnded), ", ");
    return std::count(named.begin(), named.end(), job) == 0;
  }
  return false;
}

absl::Status Reconciler::DeleteNode(const std::string& node, bool force) {
  return Decided([this, node, force]() -> absl::Status {
    ReadPresence();
    FSDPD_RETURN_IF_ERROR(CheckDeletable(node, force));
    const auto it = views_.find(node);
    const std::vector<std::string> unconfirmed =
        it == views_.end() ? std::vector<std::string>() : it->second.unconfirmed_jobs;
    v1::Event deleted;
    deleted.set_unix_nanos(absl::ToUnixNanos(parts_.clock->Wall()));
    deleted.set_kind(v1::EVENT_KIND_NODE_DELETED);
    deleted.set_node(node);
    if (!unconfirmed.empty())
      deleted.set_message(absl::StrCat(kByForce, absl::StrJoin(unconfirmed, ", "), kNotEnded));
    if (it == views_.end()) deleted.set_message(kOnlyCordon);
    // Forget first: the event is stored only for a node that is deleted.
    if (!parts_.nodes->Forget(node)) {
      return absl::UnavailableError(
          absl::StrCat("node ", node, ": not deleted, its agent has just registered; stop its agent first"));
    }
    absl::Status stored = KeepDeletedHost(node, unconfirmed);
    if (stored.ok()) stored = parts_.store->UpdateNodes({}, {node}, {deleted});
    if (!stored.ok()) {
      if (it != views_.end()) parts_.nodes->Restore(it->second);
      return stored;
    }
    nodes_remembered_.erase(node);
    ForgetNode(node);
    not_empty_since_.erase(node);
    healthy_since_.erase(node);
    if (measurements_.erase(node) > 0) ShowMeasurements();
    node_failures_.ClearFailures(node);
    ReadPresence();
    LogInfo("node deleted node=%s unconfirmed_jobs=%s", node, absl::StrJoin(unconfirmed, ","));
    if (!cordons_.Find(node).has_value()) return absl::OkStatus();
    return cordons_.Lift(node, parts_.clock->Wall(), "the node is deleted");
  });
}

}  // namespace fsdpd
