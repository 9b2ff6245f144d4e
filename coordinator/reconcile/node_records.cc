#include "coordinator/reconcile/node_records.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_split.h>
#include <absl/strings/strip.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "coordinator/nodes/known_node.h"

namespace fsdpd {
namespace {

// At most after a change of a node; at least to update the dates when nodes were last seen.
constexpr absl::Duration kAtMostEvery = absl::Seconds(1), kAtLeastEvery = absl::Minutes(10);
constexpr int kMaxDeletedHosts = 64;             // Per job, because its reason names all of them.
constexpr size_t kMeasuredAt = 3, kRevoked = 8;  // Indices of a Record.

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

void NodeRecords::Load(const v1::Node& node, const NodeView& view) {
  remembered_[node.name()] = {-1, false, false, node.preflight().unix_nanos(), node.preflight().accepted(),
                              {}, 0,     {},    view.revoked_serial,           node.in_preflight()};
}

std::map<std::string, NodeRecords::Record> NodeRecords::RecordsNow() const {
  std::map<std::string, Record> records;
  for (const auto& [name, view] : parts_.presence->views()) {
    const Preflights::Version measured = parts_.preflights->results().VersionOf(name);
    records[name] = {view.stream_generation,
                     view.connected,
                     view.left,
                     measured.unix_nanos,
                     measured.accepted,
                     view.unconfirmed_jobs,
                     parts_.health->FailureCountedAt(name),
                     parts_.health->HealthySince(name),
                     view.revoked_serial,
                     parts_.preflights->IsMeasuring(name)};
  }
  return records;
}

void NodeRecords::Remember(bool all) {
  const absl::Time now = parts_.presence->now();
  if (!all && now - remembered_at_ < kAtMostEvery) return;
  all |= now - dated_at_ >= kAtLeastEvery;
  if (all) dated_at_ = now;
  const absl::Status stored = Store(all);
  // Retried at the next call.
  if (std::exchange(stored_, stored.ok()) && !stored.ok())
    LogWarning("node records were not stored; retrying error=%s", stored.message());
}

// Writes only changed nodes: thousands of nodes have some megabytes.
absl::Status NodeRecords::Store(bool all) {
  std::map<std::string, Record> marks = RecordsNow();
  v1::ListNodesResponse changed;
  Events news;
  for (const auto& [name, mark] : marks) {
    const auto it = remembered_.find(name);
    if (!all && it != remembered_.end() && it->second == mark) continue;
    v1::Node* const node = changed.add_nodes();
    *node = NodeOf(*parts_.presence->Find(name), *parts_.clock);
    parts_.preflights->results().MarkIn(node);
    parts_.health->MarkIn(node);
    const int64_t measured = std::get<kMeasuredAt>(mark);
    const std::string& revoked = std::get<kRevoked>(mark);
    const bool told = it != remembered_.end() && std::get<kRevoked>(it->second) == revoked;
    if (!revoked.empty() && !told) news.push_back(Revoked(name, revoked, parts_.clock->Wall()));
    const int64_t before = it == remembered_.end() ? 0 : std::get<kMeasuredAt>(it->second);
    if (measured != 0 && measured != before) news.push_back(Measured(name, node->preflight()));
  }
  std::vector<std::string> gone;
  for (const auto& [name, mark] : remembered_) {
    if (marks.count(name) == 0) gone.push_back(name);
  }
  if (changed.nodes().empty() && gone.empty()) return absl::OkStatus();
  remembered_at_ = parts_.presence->now();
  FSDPD_RETURN_IF_ERROR(parts_.store->UpdateNodes(changed, gone, news));
  remembered_ = std::move(marks);
  return absl::OkStatus();
}

absl::Status NodeRecords::Delete(const std::string& node, bool is_known,
                                 const std::vector<std::string>& unconfirmed) {
  v1::Event deleted;
  deleted.set_unix_nanos(absl::ToUnixNanos(parts_.clock->Wall()));
  deleted.set_kind(v1::EVENT_KIND_NODE_DELETED);
  deleted.set_node(node);
  if (!unconfirmed.empty())
    deleted.set_message(absl::StrCat(kByForce, absl::StrJoin(unconfirmed, ", "), kNotEnded));
  if (!is_known) deleted.set_message(kOnlyCordon);
  FSDPD_RETURN_IF_ERROR(KeepDeletedHost(node, unconfirmed));
  FSDPD_RETURN_IF_ERROR(parts_.store->UpdateNodes({}, {node}, {deleted}));
  remembered_.erase(node);
  return absl::OkStatus();
}

// Called before the node is deleted: afterwards only the jobs know that their ranks may still run there. The
// record only improves a reason, so one that cannot be read, or is too large to store, does not block the
// deletion.
absl::Status NodeRecords::KeepDeletedHost(const std::string& node, const std::vector<std::string>& jobs) {
  for (const std::string& id : jobs) {
    LiveJob* live = parts_.jobs->Find(id);
    absl::StatusOr<v1::Job> job = live == nullptr ? parts_.store->Get(id) : live->job;
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
    if (job.ok() && live != nullptr) parts_.jobs->Adopt(live, *std::move(job), std::string(stored.message()));
  }
  return absl::OkStatus();
}

void NodeRecords::ForgetDeletedHost(const std::string& node) {
  for (auto& [id, live] : parts_.jobs->all()) {
    auto* hosts = live.job.mutable_deleted_hosts();
    const auto it = std::find(hosts->begin(), hosts->end(), node);
    if (it == hosts->end()) continue;
    hosts->erase(it);
    live.job.set_revision(live.job.revision() + 1);
    parts_.jobs->ShowUnsaved(&live);
  }
}

// The node list no longer knows, but the event log does.
bool NodeRecords::WasDeletedWithout(const std::string& node, const std::string& job) const {
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

}  // namespace fsdpd
