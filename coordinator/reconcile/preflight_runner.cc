#include "coordinator/reconcile/preflight_runner.h"

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

void PreflightRunner::Load(const v1::ListNodesResponse& nodes) {
  preflights_.Load(nodes);
  for (const v1::Node& node : nodes.nodes()) {
    // Ordered by a previous process of the coordinator; only the agent knows its number.
    if (node.in_preflight())
      measurements_[node.name()].until = parts_.presence->now() + policy_.limit + kAnswerTime;
  }
}

void PreflightRunner::Delay(absl::Duration by) {
  for (auto& [node, measurement] : measurements_) {
    measurement.until += by;
    measurement.lost_at += by;
  }
}

void PreflightRunner::Forget(const std::string& node) {
  preflights_.Forget(node);
  unrequested_from_.erase(node);
}

void PreflightRunner::Delete(const std::string& node) {
  Forget(node);
  if (measurements_.erase(node) > 0) preflights_.SetRunning(Measuring());
}

bool PreflightRunner::NeedsPreflight(const std::string& node, const v1::Job& job) const {
  const NodeView* view = parts_.presence->Find(node);
  if (view == nullptr || !view->connected) return false;
  const v1::Register& info = view->info;
  if (policy_.devices.count(info.device()) == 0 || !info.preflights() || !parts_.attempts->IsIdle(node))
    return false;
  const std::optional<v1::NodePreflight> known = preflights_.Find(node);
  const bool is_retry = job.attempt() > 0 && job.failure().attempt() == job.attempt();
  const bool was_there = std::any_of(job.placements().begin(), job.placements().end(),
                                     [&](const v1::Job::Placement& each) { return each.node() == node; });
  if (is_retry && was_there && Passed(known, info)) return false;
  return !Passes(known, info, parts_.clock->Wall());
}

absl::Status PreflightRunner::Begin(LiveJob* live, const PlaceDecision& decision, bool backfilled) {
  std::set<std::string> nodes;
  for (const v1::Job::Placement& placement : decision.placements) {
    if (NeedsPreflight(placement.node(), live->job)) nodes.insert(placement.node());
  }
  if (nodes.empty()) return parts_.attempts->Launch(live, decision, backfilled);
  const std::string reason = absl::StrCat(absl::StrJoin(nodes, ", "), nodes.size() == 1 ? " is" : " are",
                                          " measured first (preflight); then ", decision.reason);
  FSDPD_RETURN_IF_ERROR(parts_.jobs->Commit(live, JobEvent::kPreflight, reason, [&](v1::Job* job) {
    job->mutable_reserved_nodes()->Assign(decision.placements.begin(), decision.placements.end());
    job->set_backfilled(backfilled);
  }));
  live->measured = nodes;
  live->measured_here = true;
  for (const std::string& node : nodes) Measure(node);
  return absl::OkStatus();
}

void PreflightRunner::Measure(const std::string& node) {
  if (IsMeasuring(node)) return;
  Measurement& measurement = measurements_[node];
  // Increases across processes of the coordinator too, because it follows the date.
  newest_ = std::max(newest_ + 1, absl::ToUnixMicros(parts_.clock->Wall()));
  measurement.number = newest_;
  measurement.until = parts_.presence->now() + policy_.limit + kAnswerTime;
  parts_.ordered();
  v1::CoordinatorMessage message;
  message.mutable_preflight()->set_number(measurement.number);
  message.mutable_preflight()->set_limit_ms(absl::ToInt64Milliseconds(policy_.limit));
  parts_.nodes->Send(node, std::move(message));
  preflights_.SetRunning(Measuring());
  LogInfo("preflight started node=%s number=%d", node, measurement.number);
}

int64_t PreflightRunner::NumberOf(const std::string& node) const {
  const std::optional<v1::NodePreflight> known = preflights_.Find(node);
  return known.has_value() ? known->result().number() : 0;
}

// Repeated results are not counted: agents resend messages that may have been lost with a stream.
void PreflightRunner::Refuse(const std::string& node, const v1::PreflightResult& result) {
  if (result.number() <= std::max(newest_, NumberOf(node))) return;
  if (parts_.meters != nullptr) parts_.meters->RefusedFromAgent("preflight");
  if (unrequested_from_.insert(node).second)
    LogWarning("rejected a preflight result that was not requested node=%s number=%d", node, result.number());
}

void PreflightRunner::OnResult(const std::string& node, const v1::PreflightResult& result) {
  const auto running = measurements_.find(node);
  if (running == measurements_.end()) return Refuse(node, result);
  const int64_t number = running->second.number;
  const bool newer = number == 0 && result.number() > NumberOf(node);
  if (result.number() != number && !newer) return Refuse(node, result);
  measurements_.erase(running);
  if (!result.refused().empty())
    return LogWarning("agent rejected a preflight node=%s error=%s", node, result.refused());
  const NodeView* view = parts_.presence->Find(node);
  v1::NodePreflight preflight;
  *preflight.mutable_result() = result;
  preflight.set_unix_nanos(absl::ToUnixNanos(parts_.clock->Wall()));
  if (view != nullptr) preflight.set_device(view->info.device());
  if (view != nullptr) preflight.set_slots(view->info.slots());
  for (std::string& fault : MissedFloors(result, policy_.floors)) preflight.add_violations(std::move(fault));
  preflights_.Set(node, preflight);
  LogInfo("preflight completed node=%s seconds=%.1f faults=%d", node, result.seconds(),
          preflight.violations_size());
  if (const std::string others = UnmatchedFloors(result, policy_.floors); !others.empty())
    LogWarning("preflight floors matched no device node=%s error=%s", node, others);
  const std::optional<v1::Cordon> before = parts_.cordons->Find(node);
  if (preflight.violations().empty() || (before.has_value() && !before->for_failed_attempts())) return;
  v1::Cordon cordon;
  if (before.has_value() && before->has_drain()) *cordon.mutable_drain() = before->drain();
  cordon.set_reason(absl::StrCat("preflight: ", ViolationsText(preflight)));
  cordon.set_unix_nanos(preflight.unix_nanos());
  cordon.set_automatic(true);
  parts_.cordons->SetUnstored(node, cordon);
  LogWarning("node cordoned node=%s reason=%s", node, cordon.reason());
}

bool PreflightRunner::OnAttached(const std::string& node, bool still) {
  const auto it = measurements_.find(node);
  if (it == measurements_.end()) return false;
  if (!still) it->second.lost_at = parts_.presence->now() + kResultTime;
  return still;
}

// An agent that does not end hanging work within its limit has a device that the kernel does not release.
void PreflightRunner::AdvanceMeasurements() {
  std::vector<std::pair<std::string, v1::PreflightResult>> overdue;
  for (auto it = measurements_.begin(); it != measurements_.end();) {
    const auto& [node, measurement] = *it;
    const Presence presence = parts_.presence->Of(node);
    const bool late = parts_.presence->now() >= measurement.until;
    if (late && presence == Presence::kConnected) {
      v1::PreflightResult result;
      result.set_number(measurement.number);
      result.set_error(absl::StrCat("no result within ",
                                    HumanSeconds(absl::ToDoubleSeconds(policy_.limit + kAnswerTime))));
      overdue.emplace_back(node, std::move(result));
      ++it;
      continue;
    }
    // Until then a lost node may reconnect with its result.
    const bool lost = (late && presence == Presence::kLost) || parts_.presence->now() >= measurement.lost_at;
    it = lost ? measurements_.erase(it) : std::next(it);
  }
  for (const auto& [node, result] : overdue) OnResult(node, result);
  preflights_.SetRunning(Measuring());
}

std::set<std::string> PreflightRunner::Measuring() const {
  std::set<std::string> running;
  for (const auto& [node, measurement] : measurements_) running.insert(node);
  return running;
}

std::string PreflightRunner::UnplacedReason(LiveJob* live) {
  for (const v1::Job::Placement& placement : live->job.reserved_nodes()) {
    const std::string& node = placement.node();
    if (const auto cordon = parts_.cordons->Find(node))
      return absl::StrCat(node, " is cordoned", cordon->reason().empty() ? "" : ": ", ShownReason(*cordon));
    const NodeView* view = parts_.presence->Find(node);
    if (view == nullptr || view->left || parts_.presence->Of(node) == Presence::kLost)
      return absl::StrCat(node, " became not ready before the job was launched");
    if (live->measured.count(node) == 0 || IsMeasuring(node)) continue;
    if (!Passes(preflights_.Find(node), view->info, parts_.clock->Wall()))
      return absl::StrCat(node, " could not be measured");
    live->measured.erase(node);
  }
  return "";
}

void PreflightRunner::Advance() {
  AdvanceMeasurements();
  for (const std::string& id : parts_.jobs->In(JobIndex::View::kPreflight)) AdvanceJob(&parts_.jobs->At(id));
}

void PreflightRunner::AdvanceJob(LiveJob* live) {
  const bool known = live->measured_here;
  const std::string why = known ? UnplacedReason(live) : std::string(kRestarted);
  if (!why.empty()) {
    if (parts_.jobs->Commit(live, JobEvent::kUnplace, why).ok() && known)
      live->not_before = parts_.presence->now() + kUnplacedPause;
    return;
  }
  if (!live->measured.empty()) return;
  // Since the placement, a lost agent may have reconnected with ranks of the job's last attempt.
  if (const std::string rest = parts_.attempts->LeftoversOf(live->job.id()); !rest.empty()) {
    if (rest != live->job.reason()) parts_.jobs->Commit(live, JobEvent::kNote, rest).IgnoreError();
    return;
  }
  PlaceDecision decision;
  decision.placements.assign(live->job.reserved_nodes().begin(), live->job.reserved_nodes().end());
  decision.reason = "its nodes have passed their preflight";
  const absl::Status launched = parts_.attempts->Launch(live, decision, live->job.backfilled());
  if (launched.ok()) return;
  if (absl::IsOutOfRange(launched)) {  // Permanent: releases the nodes for other jobs.
    const std::string reason = absl::StrCat("its launch cannot be stored: ", launched.message());
    if (!parts_.jobs->Commit(live, JobEvent::kUnplace, reason).ok())
      parts_.jobs->CommitUnstored(live, JobEvent::kUnplace, reason, launched).IgnoreError();
    return;
  }
  // Retried in the next tick; the nodes are not the cause of the wait.
  const std::string reason = absl::StrCat(decision.reason, "; its launch cannot be stored");
  if (reason != live->job.reason())
    parts_.jobs->CommitUnstored(live, JobEvent::kNote, reason, launched).IgnoreError();
}

}  // namespace fsdpd
