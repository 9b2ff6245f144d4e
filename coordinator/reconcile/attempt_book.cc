#include "coordinator/reconcile/attempt_book.h"

#include <absl/strings/str_cat.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "coordinator/attempt/verdict.h"
#include "coordinator/job/job_machine.h"
#include "coordinator/job/job_plan.h"

namespace fsdpd {
namespace {

// A stop is resent until its node answers.
constexpr absl::Duration kStopRepeat = absl::Seconds(5);
// How long an ended job's slots wait for an agent that never confirms the stop.
constexpr absl::Duration kUnconfirmedStopLimit = absl::Seconds(30);

// Remaining grace of a cancel or pause that a previous process of the coordinator accepted. Never more than
// the original grace, because the date may have been set back since.
int64_t GraceLeftMs(int64_t given_ms, int64_t at_unix_nanos, absl::Time wall) {
  const int64_t passed_ms = (absl::ToUnixNanos(wall) - at_unix_nanos) / 1'000'000;
  return std::max<int64_t>(0, given_ms - std::max<int64_t>(0, passed_ms));
}

}  // namespace

bool Trains(const v1::Job& job) {
  return job.state() == v1::JOB_STATE_STARTING || job.state() == v1::JOB_STATE_RUNNING;
}

AttemptFacts* AttemptBook::Find(const AttemptRef& ref) {
  const auto it = attempts_.find(ref);
  return it == attempts_.end() ? nullptr : &it->second;
}

bool AttemptBook::IsCurrent(const AttemptRef& ref) const {
  const LiveJob* live = parts_.jobs->Find(ref.job);
  return live != nullptr && live->job.attempt() == ref.attempt && HasAttempt(live->job.state());
}

AttemptFacts& AttemptBook::Open(const v1::Job& job, bool recovered) {
  AttemptFacts& facts = attempts_[{job.id(), job.attempt()}] = AttemptFacts(job, recovered);
  hosts_.Open(facts);
  return facts;
}

void AttemptBook::Load(const v1::Job& job) {
  AttemptFacts& facts = Open(job, /*recovered=*/true);
  facts.pace.WaitFrom(parts_.presence->now());
  const bool cancelling = job.state() == v1::JOB_STATE_CANCELLING && job.has_cancellation();
  const bool pausing = job.state() == v1::JOB_STATE_PAUSING;
  // The attempt failed before: its remaining ranks have nothing to save together.
  const bool failed = job.has_failure() && job.failure().attempt() == job.attempt();
  int64_t grace_ms = kStopGraceMs;
  if (cancelling)
    grace_ms =
        GraceLeftMs(job.cancellation().grace_ms(), job.cancellation().unix_nanos(), parts_.clock->Wall());
  if (pausing) grace_ms = GraceLeftMs(job.pause().grace_ms(), job.pause().unix_nanos(), parts_.clock->Wall());
  // Its ranks may be saving now, and a different stop order would make agents end them.
  const bool leaves = pausing || job.state() == v1::JOB_STATE_CANCELLING;
  const bool saves = leaves && !failed && grace_ms > 0 && !FilledSpec(job).checkpoint().dir().empty();
  if (failed) grace_ms = std::min(grace_ms, kStopGraceMs);
  const bool stopping = leaves || job.state() == v1::JOB_STATE_STOPPING;
  if (!stopping || saves) parts_.rendezvous->Open(facts.ref);
  if (stopping) BeginStop(&facts, grace_ms, job.reason(), saves);
}

absl::Status AttemptBook::Launch(LiveJob* live, const PlaceDecision& decision, bool backfilled) {
  const std::string reason =
      absl::StrCat(decision.reason, backfilled ? ", backfilled on slots that an earlier job reserves" : "");
  const int before = live->job.attempt();
  FSDPD_RETURN_IF_ERROR(parts_.jobs->Commit(live, JobEvent::kLaunch, reason, [&](v1::Job* job) {
    KeepEarlierHosts(before, job);
    job->mutable_placements()->Assign(decision.placements.begin(), decision.placements.end());
    for (v1::Job::Placement& placement : *job->mutable_placements()) {
      const NodeView* view = parts_.presence->Find(placement.node());
      if (view != nullptr) placement.set_agent_instance(view->info.instance());
    }
    job->set_backfilled(backfilled);
  }));
  live->newest_elsewhere = 0;
  live->leftovers_until.clear();
  AttemptFacts& facts = Open(live->job, /*recovered=*/false);
  facts.pace.WaitFrom(parts_.presence->now());
  live->short_since.reset();
  live->refused_worlds.clear();
  // Removes keys that a node set for this attempt number before its launch.
  parts_.rendezvous->Close(facts.ref);
  parts_.rendezvous->Open(facts.ref);
  for (NodePart& part : facts.parts) {
    part.attached = true;
    SendLaunch(live->job, &part);
  }
  return absl::OkStatus();
}

AttemptFacts* AttemptBook::OpenGone(const v1::Job& job) {
  AttemptFacts& facts = Open(job, /*recovered=*/false);
  for (NodePart& part : facts.parts) part.stopped = true;
  return &facts;
}

// Ranks that save exchange through the rendezvous which files are written, so it is closed only when they are
// gone.
void AttemptBook::BeginStop(AttemptFacts* facts, int64_t grace_ms, const std::string& reason, bool save) {
  if (!save) parts_.rendezvous->Close(facts->ref);
  facts->stop = StopOrder{grace_ms, reason, save, parts_.presence->now()};
  facts->stop_since = std::min(facts->stop_since, parts_.presence->now());
  for (const NodePart& part : facts->parts) SendStop(*facts, part);
}

void AttemptBook::SendLocate(const AttemptFacts& facts, const std::string& reason) {
  v1::CoordinatorMessage message;
  message.mutable_locate()->set_job_id(facts.ref.job);
  message.mutable_locate()->set_attempt(facts.ref.attempt);
  message.mutable_locate()->set_reason(reason);
  for (const NodePart& part : facts.parts) parts_.nodes->Send(part.node, message);
}

int AttemptBook::OnAttached(const v1::Register& info, Hosted* hosted) {
  const std::string& node = info.node();
  int leftovers = 0;
  for (auto next = attempts_.begin(); next != attempts_.end();) {
    const auto attempt = next++;
    auto& [ref, facts] = *attempt;
    NodePart* part = facts.PartOf(node);
    if (part == nullptr) continue;
    const auto it = hosted->find(ref);
    if (it == hosted->end() && IsCurrent(ref) && facts.TakeUndeliveredLaunch(info))
      LogInfo("resent a launch that was not delivered node=%s job=%s attempt=%d", node, ref.job, ref.attempt);
    facts.TakeAttached(node, it == hosted->end() ? std::set<int>() : it->second, parts_.presence->now());
    if (it != hosted->end()) hosted->erase(it);
    leftovers += part->leftover && !part->stopped ? 1 : 0;
    if (part->leftover && part->stopped && facts.parts.size() == 1) {
      // Close it now and not at the end of the tick: an agent may register many times until then.
      Close(attempt);
    } else if (facts.stop.has_value()) {
      SendStop(facts, *part);
    } else if (!part->launched && IsCurrent(ref)) {
      part->agent_instance = info.instance();
      SendLaunch(parts_.jobs->At(ref.job).job, part);
    }
  }
  return leftovers;
}

void AttemptBook::AddLeftover(const AttemptRef& ref, const std::string& node, const StopOrder& order,
                              bool placed, absl::Time awaited_until) {
  NodePart part;
  part.node = node;
  part.launched = part.attached = part.hosted = part.leftover = true;
  part.awaited_until = awaited_until;
  hosts_.AddLeftover(ref, part.node, placed);
  AttemptFacts& facts = attempts_[ref];
  facts.ref = ref;
  facts.parts.push_back(part);
  if (facts.stop.has_value()) return SendStop(facts, part);
  if (order.save && placed) parts_.rendezvous->Open(ref);
  BeginStop(&facts, order.grace_ms, order.reason, order.save);
}

void AttemptBook::SendRefusal(const AttemptRef& ref, const std::string& node, const std::string& why) {
  AttemptFacts refused;
  refused.ref = ref;
  refused.stop = StopOrder{kStopGraceMs, why};
  NodePart part;
  part.node = node;
  SendStop(refused, part);
}

void AttemptBook::RestartWaits() {
  for (auto& [ref, facts] : attempts_) facts.RestartWaits(parts_.presence->now());
}

void AttemptBook::AdvanceStops() {
  const absl::Time now = parts_.presence->now();
  const PresenceOf presence = parts_.presence->AsFunction();
  for (auto it = attempts_.begin(); it != attempts_.end();) {
    AttemptFacts& facts = it->second;
    const bool current = IsCurrent(it->first);
    const bool overdue =
        now - facts.stop_since > kUnconfirmedStopLimit && !facts.ranks().empty() && facts.AllExited();
    if (!current && (IsGone(facts, presence) || overdue)) {
      if (!IsGone(facts, presence))
        LogWarning("end of attempt was not confirmed job=%s attempt=%d", it->first.job, it->first.attempt);
      it = Close(it);
      continue;
    }
    if (current && !facts.stop.has_value()) ResendLaunches(&facts);
    if (facts.stop.has_value() && now - facts.stop->sent >= kStopRepeat) {
      facts.stop->sent = now;
      for (const NodePart& part : facts.parts) SendStop(facts, part);
    }
    ++it;
  }
}

AttemptBook::Attempts::iterator AttemptBook::Close(Attempts::iterator it) {
  KeepUnconfirmed(it->second);
  parts_.rendezvous->Close(it->first);
  hosts_.Close(it->first);
  return attempts_.erase(it);
}

// On a node that was lost before its agent reported the end of the attempt's ranks, these may still run.
// Reconciler::DeleteNode() asks for confirmation before it drops the only record of that.
void AttemptBook::KeepUnconfirmed(const AttemptFacts& facts) {
  for (const NodePart& part : facts.parts) {
    if (part.stopped || parts_.presence->Of(part.node) != Presence::kLost) continue;
    // Its agent registered with ranks of an earlier attempt, did not report which, and was lost again.
    bool unconfirmed = part.ranks == 0;
    for (int rank = part.first_rank; rank < part.first_rank + part.ranks; ++rank)
      unconfirmed |= !facts.ranks()[rank].exit.has_value();
    if (!unconfirmed) continue;
    parts_.nodes->AddUnconfirmed(part.node, facts.ref.job,
                                 [this](const std::string& job) { return parts_.jobs->HasEnded(job); });
  }
}

void AttemptBook::SendLaunch(const v1::Job& job, NodePart* part, bool again) {
  AttemptFacts& facts = attempts_.at({job.id(), job.attempt()});
  v1::CoordinatorMessage message;
  v1::Launch* launch = message.mutable_launch();
  launch->set_job_id(job.id());
  launch->set_attempt(job.attempt());
  *launch->mutable_spec() = job.resolved();
  *launch->mutable_memory_plan() = job.memory_plan();
  *launch->mutable_skipped_samples() = job.skipped_samples();
  if (!job.checkpoints().empty()) launch->set_checkpoint_step(job.checkpoints().rbegin()->step());
  launch->set_world_size(static_cast<int32_t>(facts.ranks().size()));
  launch->set_first_rank(part->first_rank);
  launch->set_ranks(part->ranks);
  launch->mutable_devices()->Assign(part->devices.begin(), part->devices.end());
  launch->set_resent(again);
  if (again) {
    // Addressed to the current stream: a new process of the agent, which may have just registered, would
    // start the ranks again.
    parts_.nodes->Send(part->node, std::move(message), parts_.presence->StreamOf(part->node));
    return;
  }
  part->launched = parts_.nodes->Send(part->node, std::move(message));
  if (part->launched)
    facts.launches.Sent(part->node, parts_.nodes->AcknowledgesLaunches(part->node), parts_.presence->now());
}

void AttemptBook::ResendLaunches(AttemptFacts* facts) {
  for (const std::string& node : facts->launches.TakeDue(parts_.presence->now())) {
    const NodeView* view = parts_.presence->Find(node);
    if (view == nullptr || !parts_.presence->HasReported(*view)) continue;
    LogWarning("launch was not acknowledged; resending node=%s job=%s attempt=%d", node, facts->ref.job,
               facts->ref.attempt);
    SendLaunch(parts_.jobs->At(facts->ref.job).job, facts->PartOf(node), /*again=*/true);
  }
}

void AttemptBook::SendStop(const AttemptFacts& facts, const NodePart& part) {
  if (part.stopped) return;
  v1::CoordinatorMessage message;
  v1::Stop* stop = message.mutable_stop();
  stop->set_job_id(facts.ref.job);
  stop->set_attempt(facts.ref.attempt);
  stop->set_grace_ms(std::max<int64_t>(1, facts.stop->grace_ms));  // To an agent, 0 means its own default.
  stop->set_reason(facts.stop->reason);
  stop->set_save(facts.stop->save);
  if (const LiveJob* live = parts_.jobs->Find(facts.ref.job)) {
    const v1::Job::Failure& failure = live->job.failure();
    if (failure.has_hang() && failure.attempt() == facts.ref.attempt) {
      stop->mutable_hang()->set_rank(failure.rank());
      stop->mutable_hang()->set_verdict(failure.error());
    }
  }
  parts_.nodes->Send(part.node, std::move(message));
}

std::string AttemptBook::LeftoversOf(const std::string& job) const {
  const NodePart* left = nullptr;
  int attempt = 0;
  for (auto it = attempts_.lower_bound({job, 0}); it != attempts_.end() && it->first.job == job; ++it) {
    for (const NodePart& part : it->second.parts) {
      if (part.stopped || parts_.presence->now() >= part.awaited_until) continue;
      if (it->second.GaveUpOn(part, parts_.presence->now())) continue;
      if (parts_.presence->Of(part.node) == Presence::kLost) continue;
      // Prefer an attempt that an agent reports to host over one whose end is only unconfirmed.
      if (left != nullptr && left->hosted && !part.hosted) continue;
      left = &part;
      attempt = it->first.attempt;
    }
  }
  if (left == nullptr) return "";
  return absl::StrCat("waits until the remaining ranks of attempt ", attempt, " on ", left->node,
                      " have ended");
}

bool AttemptBook::IsIdle(const std::string& node) const {
  for (const auto& [ref, facts] : attempts_) {
    for (const NodePart& part : facts.parts) {
      if (part.node == node && !part.stopped) return false;
    }
  }
  return true;
}

bool AttemptBook::HasRefusedRanks(const std::string& node) const {
  const auto it = refused_until_.find(node);
  return it != refused_until_.end() && parts_.presence->now() < it->second;
}

std::set<std::string> AttemptBook::FullNodes() const {
  std::set<std::string> full;
  for (const auto& [ref, facts] : attempts_) {
    for (const NodePart& part : facts.parts) {
      if (part.leftover && !part.stopped) full.insert(part.node);
    }
  }
  for (const auto& [node, until] : refused_until_) {
    if (HasRefusedRanks(node)) full.insert(node);
  }
  return full;
}

}  // namespace fsdpd
