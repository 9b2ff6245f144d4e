// Reconciler: which queued jobs are launched, with which plan, and the launch itself.
#include <absl/strings/str_cat.h>

#include "base/check.h"
#include "coordinator/failure_policy.h"
#include "coordinator/job_machine.h"
#include "coordinator/job_plan.h"
#include "coordinator/reconciler.h"
#include "coordinator/slot_count.h"
#include "coordinator/waiting.h"

namespace fsdpd {
namespace {

// New reasons of queued jobs stored per tick: a change at the head of a long queue must not stall the tick.
constexpr int kMaxNotesPerTick = 16;
// Plans made in a tick: one of a large model takes a good part of a second, one that is refused more.
constexpr int kMaxPlansPerTick = 1;

constexpr char kAwaitsAgents[] =
    "waits until agents had their time to come back after the coordinator's start: one may know more of it";

// What the job must have, and what its last attempt says of where it had better be.
PlaceRequest RequestAgain(const v1::Job& job) {
  PlaceRequest request = RequestOf(job);
  for (const v1::Job::Placement& placement : job.placements()) request.before.insert(placement.node());
  request.avoided = NodeToAvoid(job);
  return request;
}

}  // namespace

void Reconciler::PlaceQueued() {
  std::map<v1::Device, std::string> ahead;  // The first job of each kind that has to wait.
  std::map<v1::Device, int> places;
  std::map<std::string, v1::Job::Waiting> waits;
  std::vector<NodeSlots> slots = SlotsNow();
  QuotaRoom quotas = QuotasNow();
  int notes = 0, plans = 0;
  const auto queue = queue_;
  for (const auto& [order, create_nanos, id] : queue) {
    LiveJob& live = jobs_.at(id);
    if (lease_.now() < live.not_before) {  // It holds no place while it waits for its next attempt.
      waits[id] = WaitingForTime(parts_.clock->WallOf(live.not_before));
      continue;
    }
    const PlaceRequest request = RequestAgain(live.job);
    v1::Job::Waiting held;
    std::string reason = WhyHeld(&live, request, &quotas, &held);
    if (!reason.empty()) {
      waits[id] = held;  // It holds no place either.
    } else if (const auto it = ahead.find(request.device); it != ahead.end()) {
      reason = BehindReason(request, jobs_.at(it->second).job, live.job);
      waits[id] = WaitingBehind(it->second);
      waits[id].set_place(++places[request.device]);
    } else if (live.awaits_agents && !lease_.Settled()) {
      reason = kAwaitsAgents;
      waits[id] = WaitingForAgents();
      waits[id].set_place(++places[request.device]);
      ahead[request.device] = id;
    } else if (reason = WhatIsLeftOf(id); !reason.empty()) {  // Nor does it hold one while that leaves.
      waits[id] = WaitingForRest();
    } else {
      const PlaceDecision decision = Decide(&live, slots, &plans);
      if (live.job.state() != v1::JOB_STATE_QUEUED) {
        ForgetIfEnded(id);
        continue;
      }
      if (decision.placed() && Begin(&live, decision).ok()) {
        quotas.Take(live.job.project(), request.nodes * request.ranks_per_node);
        slots = SlotsNow();
        continue;
      }
      reason = decision.reason;
      waits[id] = reason.empty() ? WaitingForPlan() : WaitingToBePlaced(RequestOf(live.job), slots);
      // Slots that wait for it would never be enough. Once there are nodes for it, it is ahead again, and
      // nobody passes it any more.
      if (decision.possible || !lease_.Settled()) {
        if (!IsPlanOpen(live.job) && decision.possible && lease_.Settled())
          reason += MakeRoom(live.job, RequestAgain(live.job), slots);
        ahead[request.device] = id;
        waits[id].set_place(++places[request.device]);
      } else {
        reason += "; jobs behind it go first meanwhile";
      }
    }
    if (reason.empty() || reason == live.job.reason() || notes == kMaxNotesPerTick) continue;
    ++notes;
    if (!Commit(&live, JobEvent::kNote, reason).ok()) break;
  }
  ShowWaiting(std::move(waits));
}

// Why it may not be launched yet, wherever there is room; "" where it may.
std::string Reconciler::WhyHeld(LiveJob* live, const PlaceRequest& request, QuotaRoom* quotas,
                                v1::Job::Waiting* waiting) {
  if (!WaitsForJobs(live->job))
    return quotas->WhyNot(live->job, request.nodes * request.ranks_per_node, waiting);
  *waiting = WaitingForJobs(live->job, StatesFor(live));
  return AfterReason(live->job, StatesFor(live));
}

// Of its earlier attempts, where an agent that was lost is back with their ranks: two of them would be alive.
std::string Reconciler::WhatIsLeftOf(const std::string& id) const {
  for (auto it = attempts_.lower_bound({id, 0}); it != attempts_.end() && it->first.job == id; ++it) {
    for (const NodePart& part : it->second.parts) {
      if (part.stopped || PresenceAt(part.node) == Presence::kLost) continue;
      return absl::StrCat("waits until what is left of attempt ", it->first.attempt, " on ", part.node,
                          " has ended");
    }
  }
  return "";
}

// Slots of an attempt that leaves are its project's until it has left.
QuotaRoom Reconciler::QuotasNow() const {
  if (!parts_.quotas) return QuotaRoom();
  QuotaRoom room(parts_.quotas());
  for (const auto& [id, live] : jobs_) {
    for (const v1::Job::Placement& held : live.job.held()) room.Take(live.job.project(), held.ranks());
    if (!HasAttempt(live.job.state())) continue;
    for (const v1::Job::Placement& placement : live.job.placements())
      room.Take(live.job.project(), placement.ranks());
  }
  return room;
}

void Reconciler::ShowWaiting(std::map<std::string, v1::Job::Waiting> waiting) {
  for (const auto& [id, live] : jobs_) {
    if (live.job.state() == v1::JOB_STATE_PAUSED) waiting[id] = WaitingToBeResumed(id);
  }
  parts_.board->SetWaiting(std::move(waiting));
}

// Where the job goes, or why it waits. A plan that is still open is made first, once there are nodes to make
// it for; no reason where that has to wait for the next tick. `plans`: made in this tick.
PlaceDecision Reconciler::Decide(LiveJob* live, const std::vector<NodeSlots>& slots, int* plans) {
  if (!IsPlanOpen(live->job)) return Place(RequestAgain(live->job), slots);
  const MemoryOffer offer = OfferTo(RequestOf(live->job), slots);
  if (LeavesPlanOpen(live->job.spec(), offer)) return Place(RequestAgain(live->job), slots);
  PlaceDecision waits;
  if (live->refused_offer != offer.bytes_per_rank) {
    if (++*plans > kMaxPlansPerTick || !ClosePlan(live, offer.bytes_per_rank).ok()) return waits;
    if (!IsPlanOpen(live->job)) return Place(RequestAgain(live->job), slots);
  }
  waits.possible = false;  // Not on the nodes that are there.
  waits.reason = absl::StrCat("does not fit the nodes that are there: ", live->refusal);
  return waits;
}

// The plan is stored with the launch at the latest. What only roomier nodes could help waits for them; what
// nothing helps, a fault of ours or a rule that is newer than the job, ends it. An error is the store's.
absl::Status Reconciler::ClosePlan(LiveJob* live, int64_t offer_bytes) {
  const Plan plan = parts_.plan(live->job.spec(), offer_bytes);
  if (plan.accepted()) {
    KeepPlan(plan, /*open=*/false, &live->job);
    live->unsaved = true;
    return absl::OkStatus();
  }
  const std::string why = WhyRefused(plan);
  if (IsOnlyTooLarge(plan)) {
    live->refused_offer = offer_bytes;
    live->refusal = why;
    return absl::OkStatus();
  }
  const std::string words = absl::StrCat("cannot be launched: ", why);
  return Commit(live, JobEvent::kGiveUp, words, [&](v1::Job* job) {
    v1::Job::Failure failure;
    failure.set_rank(-1);
    failure.set_error(words);
    failure.set_cause(v1::FAILURE_CAUSE_CONFIGURATION);
    *job->mutable_failure() = failure;
  });
}

absl::Status Reconciler::Launch(LiveJob* live, const PlaceDecision& decision) {
  FSDPD_RETURN_IF_ERROR(Commit(live, JobEvent::kLaunch, decision.reason, [&](v1::Job* job) {
    job->mutable_placements()->Assign(decision.placements.begin(), decision.placements.end());
  }));
  const AttemptRef ref = {live->job.id(), live->job.attempt()};
  AttemptFacts& facts = attempts_[ref] = AttemptFacts(live->job, /*recovered=*/false);
  facts.pace.WaitFrom(lease_.now());
  parts_.rendezvous->Open(ref);
  for (NodePart& part : facts.parts) {
    part.attached = true;
    SendLaunch(live->job, &part);
  }
  return absl::OkStatus();
}

void Reconciler::SendLaunch(const v1::Job& job, NodePart* part) {
  v1::CoordinatorMessage message;
  v1::Launch* launch = message.mutable_launch();
  launch->set_job_id(job.id());
  launch->set_attempt(job.attempt());
  *launch->mutable_spec() = job.resolved();
  *launch->mutable_memory_plan() = job.memory_plan();
  *launch->mutable_passed_over() = job.passed_over();
  if (!job.checkpoints().empty()) launch->set_checkpoint_step(job.checkpoints().rbegin()->step());
  launch->set_world(static_cast<int32_t>(attempts_.at({job.id(), job.attempt()}).ranks().size()));
  launch->set_first_rank(part->first_rank);
  launch->set_ranks(part->ranks);
  launch->mutable_devices()->Assign(part->devices.begin(), part->devices.end());
  part->launched = parts_.nodes->Send(part->node, std::move(message));
}

std::vector<NodeSlots> Reconciler::SlotsNow() const {
  std::vector<NodeView> usable;
  std::vector<NodeSlots> away;
  for (const auto& [name, view] : views_) {
    // A stream whose hosted attempts were not taken yet offers nothing: its slots may be in use.
    const auto it = attached_.find(name);
    if (view.connected && it != attached_.end() && it->second == view.epoch) {
      usable.push_back(view);
    } else if (PresenceAt(name) != Presence::kLost) {
      away.push_back(IdleSlots(view));
      away.back().away = true;
      away.back().free_devices.clear();
    }
  }
  std::vector<NodeSlots> slots = CountSlots(usable, attempts_);
  HoldForPreflights(&slots);
  slots.insert(slots.end(), away.begin(), away.end());
  cordons_.MarkIn(&slots);
  return slots;
}

}  // namespace fsdpd
