// Reconciler: preflight, the measurement of nodes before a job runs there (preflights.h). A job that is
// placed on nodes without a measurement of the last day holds its slots in PREFLIGHT while their agents
// measure all devices. It is launched once all nodes have passed. A node below a floor is cordoned with the
// measured number, also if a user requested the preflight, and however few nodes remain: nothing else ran
// there, so either the node or the floor is wrong. The job then returns to the queue and is placed elsewhere.
//
// A result, or an agent's report that it is still measuring, counts only if the coordinator ordered that
// preflight. Running preflights are stored with the nodes (Node.in_preflight), so that the next process of
// the coordinator accepts the result. It queues jobs that it finds in PREFLIGHT at its start again.
//
// Only idle nodes are measured: running jobs would be slowed down and would distort the measurement. A job
// that joins others on a node therefore uses it as they did. A job that is relaunched on the same nodes after
// a failed attempt does not wait for a new measurement, however old the last one is.
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/api/call_limits.h"
#include "base/check.h"
#include "base/log.h"
#include "base/text.h"
#include "coordinator/job/job_machine.h"
#include "coordinator/metrics/meters.h"
#include "coordinator/nodes/known_node.h"
#include "coordinator/reconcile/reconciler.h"
#include "coordinator/request/errors.h"

namespace fsdpd {
namespace {

// Time beyond the limit that an agent may take to end hanging work and to report it.
constexpr absl::Duration kAnswerTime = absl::Seconds(20);
// An agent that reconnects without the preflight may still deliver its result: it resends messages in
// transit.
constexpr absl::Duration kResultTime = absl::Seconds(2);
// Delay before a job whose nodes could not be measured is placed again.
constexpr absl::Duration kUnplacedPause = absl::Seconds(1);
constexpr int kMostFaults = 3;  // Named in a cordon's reason; further ones are only counted.

constexpr char kRestarted[] = "the coordinator restarted; its nodes are selected again";

std::string ViolationsText(const v1::NodePreflight& preflight) {
  const int shown = std::min(preflight.violations_size(), kMostFaults);
  std::string text =
      absl::StrJoin(preflight.violations().begin(), preflight.violations().begin() + shown, "; ");
  if (shown < preflight.violations_size())
    absl::StrAppend(&text, "; and ", preflight.violations_size() - shown, " more");
  return CutText(text, kMaxReasonBytes - 64);
}

}  // namespace

bool Reconciler::IsIdle(const std::string& node) const {
  for (const auto& [ref, facts] : attempts_) {
    for (const NodePart& part : facts.parts) {
      if (part.node == node && !part.stopped) return false;
    }
  }
  return true;
}

bool Reconciler::NeedsPreflight(const std::string& node, const v1::Job& job) const {
  const auto it = views_.find(node);
  if (it == views_.end() || !it->second.connected) return false;
  const v1::Register& info = it->second.info;
  if (options_.preflight.devices.count(info.device()) == 0 || !info.preflights() || !IsIdle(node))
    return false;
  const std::optional<v1::NodePreflight> known = preflights_.Find(node);
  const bool is_retry = job.attempt() > 0 && job.failure().attempt() == job.attempt();
  const bool was_there = std::any_of(job.placements().begin(), job.placements().end(),
                                     [&](const v1::Job::Placement& each) { return each.node() == node; });
  if (is_retry && was_there && Passed(known, info)) return false;
  return !Passes(known, info, parts_.clock->Wall());
}

// Launches the job, or measures its nodes first.
absl::Status Reconciler::Begin(LiveJob* live, const PlaceDecision& decision, bool backfilled) {
  std::set<std::string> nodes;
  for (const v1::Job::Placement& placement : decision.placements) {
    if (NeedsPreflight(placement.node(), live->job)) nodes.insert(placement.node());
  }
  if (nodes.empty()) return Launch(live, decision, backfilled);
  const std::string reason = absl::StrCat(absl::StrJoin(nodes, ", "), nodes.size() == 1 ? " is" : " are",
                                          " measured first (preflight); then ", decision.reason);
  FSDPD_RETURN_IF_ERROR(Commit(live, JobEvent::kPreflight, reason, [&](v1::Job* job) {
    job->mutable_reserved_nodes()->Assign(decision.placements.begin(), decision.placements.end());
    job->set_backfilled(backfilled);
  }));
  live->measured = nodes;
  live->measured_here = true;
  for (const std::string& node : nodes) Measure(node);
  return absl::OkStatus();
}

void Reconciler::Measure(const std::string& node) {
  if (measurements_.count(node) != 0) return;
  Measurement& measurement = measurements_[node];
  // Increases across processes of the coordinator too, because it follows the date.
  newest_measurement_ = std::max(newest_measurement_ + 1, absl::ToUnixMicros(parts_.clock->Wall()));
  measurement.number = newest_measurement_;
  measurement.until = lease_.now() + options_.preflight.limit + kAnswerTime;
  nodes_remembered_at_ = absl::InfinitePast();  // Store the order in this tick.
  v1::CoordinatorMessage message;
  message.mutable_preflight()->set_number(measurement.number);
  message.mutable_preflight()->set_limit_ms(absl::ToInt64Milliseconds(options_.preflight.limit));
  parts_.nodes->Send(node, std::move(message));
  ShowMeasurements();
  LogInfo("preflight started node=%s number=%d", node, measurement.number);
}

absl::Status Reconciler::Preflight(const std::string& node) {
  return Decided([this, node]() -> absl::Status {
    ReadPresence();
    const auto it = views_.find(node);
    if (it == views_.end()) return NodeNotFound(node);
    const auto not_idle = [&](const std::string& why) {
      return WrongState("NODE_NOT_IDLE", absl::StrCat("nodes/", node), absl::StrCat(node, " ", why));
    };
    if (measurements_.count(node) != 0) return absl::OkStatus();
    if (!it->second.connected)
      return not_idle(absl::StrCat("is ", StateOf(it->second), ": it cannot be measured now"));
    if (!it->second.info.preflights())
      return WrongState("AGENT_TOO_OLD", absl::StrCat("nodes/", node),
                        absl::StrCat("node ", node, ": its agent does not support preflight (release ",
                                     it->second.info.version(), "); upgrade the agent"));
    if (HasRefusedRanks(node)) return not_idle("has ranks that are leaving; retry in a few seconds");
    for (const NodeSlots& slots : SlotsNow()) {
      if (slots.name == node && !slots.jobs.empty())
        return not_idle(absl::StrCat("is in use by ", absl::StrJoin(slots.jobs, ", "),
                                     "; preflight requires an idle node"));
    }
    Measure(node);
    return absl::OkStatus();
  });
}

void Reconciler::OnReport(const std::string& node, const v1::PreflightResult& result) {
  events_.Push([this, node, result] { TakePreflight(node, result); });
}

int64_t Reconciler::NumberOfPreflight(const std::string& node) const {
  const std::optional<v1::NodePreflight> known = preflights_.Find(node);
  return known.has_value() ? known->result().number() : 0;
}

// Repeated results are not counted: agents resend messages that may have been lost with a stream.
void Reconciler::RefusePreflight(const std::string& node, const v1::PreflightResult& result) {
  if (result.number() <= std::max(newest_measurement_, NumberOfPreflight(node))) return;
  if (parts_.meters != nullptr) parts_.meters->RefusedFromAgent("preflight");
  if (unrequested_from_.insert(node).second)
    LogWarning("rejected a preflight result that was not requested node=%s number=%d", node, result.number());
}

void Reconciler::TakePreflight(const std::string& node, const v1::PreflightResult& result) {
  const auto running = measurements_.find(node);
  if (running == measurements_.end()) return RefusePreflight(node, result);
  const int64_t number = running->second.number;
  const bool newer = number == 0 && result.number() > NumberOfPreflight(node);
  if (result.number() != number && !newer) return RefusePreflight(node, result);
  measurements_.erase(running);
  if (!result.refused().empty())
    return LogWarning("agent rejected a preflight node=%s error=%s", node, result.refused());
  const auto view = views_.find(node);
  v1::NodePreflight preflight;
  *preflight.mutable_result() = result;
  preflight.set_unix_nanos(absl::ToUnixNanos(parts_.clock->Wall()));
  if (view != views_.end()) preflight.set_device(view->second.info.device());
  if (view != views_.end()) preflight.set_slots(view->second.info.slots());
  for (std::string& fault : MissedFloors(result, options_.preflight.floors))
    preflight.add_violations(std::move(fault));
  preflights_.Set(node, preflight);
  LogInfo("preflight completed node=%s seconds=%.1f faults=%d", node, result.seconds(),
          preflight.violations_size());
  if (const std::string others = UnmatchedFloors(result, options_.preflight.floors); !others.empty())
    LogWarning("preflight floors matched no device node=%s error=%s", node, others);
  const std::optional<v1::Cordon> before = cordons_.Find(node);
  if (preflight.violations().empty() || (before.has_value() && !before->for_failed_attempts())) return;
  v1::Cordon cordon;
  if (before.has_value() && before->has_drain()) *cordon.mutable_drain() = before->drain();
  cordon.set_reason(absl::StrCat("preflight: ", ViolationsText(preflight)));
  cordon.set_unix_nanos(preflight.unix_nanos());
  cordon.set_automatic(true);
  cordons_.SetUnstored(node, cordon);
  LogWarning("node cordoned node=%s reason=%s", node, cordon.reason());
}

// A preflight that a previous process of the coordinator ordered; only the agent knows its number.
void Reconciler::LoadMeasurement(const v1::Node& node) {
  if (node.in_preflight())
    measurements_[node.name()].until = lease_.now() + options_.preflight.limit + kAnswerTime;
}

// The agent has registered and is measuring (`still`) or not. Returns whether it measures as ordered.
bool Reconciler::TakeMeasuring(const std::string& node, bool still) {
  const auto it = measurements_.find(node);
  if (it == measurements_.end()) return false;
  if (!still) it->second.lost_at = lease_.now() + kResultTime;
  return still;
}

// An agent that does not end hanging work within its limit has a device that the kernel does not release.
void Reconciler::AdvanceMeasurements() {
  std::vector<std::pair<std::string, v1::PreflightResult>> overdue;
  for (auto it = measurements_.begin(); it != measurements_.end();) {
    const auto& [node, measurement] = *it;
    const Presence presence = PresenceAt(node);
    const bool late = lease_.now() >= measurement.until;
    if (late && presence == Presence::kConnected) {
      v1::PreflightResult result;
      result.set_number(measurement.number);
      result.set_error(absl::StrCat(
          "no result within ", HumanSeconds(absl::ToDoubleSeconds(options_.preflight.limit + kAnswerTime))));
      overdue.emplace_back(node, std::move(result));
      ++it;
      continue;
    }
    // Until then a lost node may reconnect with its result.
    const bool lost = (late && presence == Presence::kLost) || lease_.now() >= measurement.lost_at;
    it = lost ? measurements_.erase(it) : std::next(it);
  }
  for (const auto& [node, result] : overdue) TakePreflight(node, result);
  ShowMeasurements();
}

void Reconciler::ShowMeasurements() {
  std::set<std::string> running;
  for (const auto& [node, measurement] : measurements_) running.insert(node);
  preflights_.SetRunning(std::move(running));
}

// Returns why the job's nodes became unusable, or "" if they passed or are still being measured.
std::string Reconciler::UnplacedReason(LiveJob* live) {
  for (const v1::Job::Placement& placement : live->job.reserved_nodes()) {
    const std::string& node = placement.node();
    if (const auto cordon = cordons_.Find(node))
      return absl::StrCat(node, " is cordoned", cordon->reason().empty() ? "" : ": ", ShownReason(*cordon));
    const auto view = views_.find(node);
    if (view == views_.end() || view->second.left || PresenceAt(node) == Presence::kLost)
      return absl::StrCat(node, " became not ready before the job was launched");
    if (live->measured.count(node) == 0 || measurements_.count(node) != 0) continue;
    if (!Passes(preflights_.Find(node), view->second.info, parts_.clock->Wall()))
      return absl::StrCat(node, " could not be measured");
    live->measured.erase(node);
  }
  return "";
}

void Reconciler::AdvancePreflights() {
  AdvanceMeasurements();
  for (const std::string& id : index_.In(JobIndex::View::kPreflight)) {
    LiveJob& live = jobs_.at(id);
    const bool known = live.measured_here;
    const std::string why = known ? UnplacedReason(&live) : std::string(kRestarted);
    if (!why.empty()) {
      if (Commit(&live, JobEvent::kUnplace, why).ok() && known)
        live.not_before = lease_.now() + kUnplacedPause;
      continue;
    }
    if (!live.measured.empty()) continue;
    // Since the placement, a lost agent may have reconnected with ranks of the job's last attempt.
    if (const std::string rest = LeftoversOf(id); !rest.empty()) {
      if (rest != live.job.reason()) Commit(&live, JobEvent::kNote, rest).IgnoreError();
      continue;
    }
    PlaceDecision decision;
    decision.placements.assign(live.job.reserved_nodes().begin(), live.job.reserved_nodes().end());
    decision.reason = "its nodes have passed their preflight";
    const absl::Status launched = Launch(&live, decision, live.job.backfilled());
    if (launched.ok()) continue;
    if (absl::IsOutOfRange(launched)) {  // Permanent: releases the nodes for other jobs.
      const std::string reason = absl::StrCat("its launch cannot be stored: ", launched.message());
      if (!Commit(&live, JobEvent::kUnplace, reason).ok())
        CommitUnstored(&live, JobEvent::kUnplace, reason, launched).IgnoreError();
      continue;
    }
    // Retried in the next tick; the nodes are not the cause of the wait.
    const std::string reason = absl::StrCat(decision.reason, "; its launch cannot be stored");
    if (reason != live.job.reason()) CommitUnstored(&live, JobEvent::kNote, reason, launched).IgnoreError();
  }
}

// Marks slots as used by running preflights, which take the whole node, and by the jobs that wait for them.
void Reconciler::HoldForPreflights(std::vector<NodeSlots>* slots) const {
  for (NodeSlots& node : *slots) {
    if (measurements_.count(node.name) == 0) continue;
    node.free_devices.clear();
    node.measured = true;
  }
  for (const std::string& id : index_.In(JobIndex::View::kPreflight)) {
    for (const v1::Job::Placement& held : jobs_.at(id).job.reserved_nodes()) {
      for (NodeSlots& node : *slots) {
        if (node.name != held.node()) continue;
        node.jobs.push_back(id);
        for (const int device : held.devices())
          node.free_devices.erase(std::remove(node.free_devices.begin(), node.free_devices.end(), device),
                                  node.free_devices.end());
      }
    }
  }
}

}  // namespace fsdpd
