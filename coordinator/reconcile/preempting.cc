// Reconciler: preemption (preemption.h). A preempted job is paused like by a user, and marked to resume by
// itself, so that it continues when slots are free. A job in PREFLIGHT is queued again immediately.
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include "base/check.h"
#include "coordinator/attempt/job_pause.h"
#include "coordinator/job/job_machine.h"
#include "coordinator/job/job_plan.h"
#include "coordinator/reconcile/reconciler.h"

namespace fsdpd {
namespace {

// The default of a user's pause: ranks leave as soon as they have saved.
constexpr int64_t kGraceMs = 600000;
constexpr size_t kMaxNames = 4;  // In a reason.

}  // namespace

// Preempts jobs for `head`, which waits for slots next to the reservations `ahead`.
Reconciler::Preempted Reconciler::PreemptFor(const v1::Job& head, const PlaceRequest& request,
                                             const Reservations& ahead) {
  if (IsPlanOpen(head) || !lease_.Settled()) return {};
  const Victims victims = ChooseVictims(request, head.spec().priority(), ahead.now(), ahead, Occupants(head));
  for (const std::string& id : victims.leave) {
    // A job whose pause could not be stored is chosen again in the next tick, when the others of this tick
    // are already leaving.
    if (!Preempt(&jobs_.at(id), head).ok()) break;
  }
  std::vector<std::string> leave;
  for (const std::string& id : index_.In(JobIndex::View::kPausing)) {
    if (jobs_.at(id).job.pause().preempted_by() == head.id()) leave.push_back(id);
  }
  if (leave.empty()) return {victims.suffices, ""};
  const bool one = leave.size() == 1, all = leave.size() <= kMaxNames;
  if (!all) leave.resize(kMaxNames);
  return {victims.suffices, absl::StrCat("; ", absl::StrJoin(leave, ", "), all ? "" : ", ...",
                                         one ? " saves and leaves for it" : " save and leave for it")};
}

// Sets `may_leave` only for jobs whose slots `head` may take.
std::vector<Occupant> Reconciler::Occupants(const v1::Job& head) const {
  std::vector<Occupant> all;
  std::map<std::string, std::set<int>> held;
  for (const auto& [ref, facts] : attempts_) {
    Occupant occupant;
    occupant.job = ref.job;
    occupant.leaves = true;
    if (const auto it = jobs_.find(ref.job); it != jobs_.end() && it->second.job.attempt() == ref.attempt) {
      const v1::Job& job = it->second.job;
      occupant.priority = job.spec().priority();
      occupant.start_unix_nanos = job.start_unix_nanos();
      occupant.leaves = job.state() != v1::JOB_STATE_STARTING && job.state() != v1::JOB_STATE_RUNNING;
      occupant.backfilled = job.backfilled() && PlaceInQueue(head) < PlaceInQueue(job);
      // A backfilled job leaves even if it cannot save: the job that reserved the slots must not wait for its
      // disk.
      occupant.may_leave =
          occupant.backfilled || (job.preemptible() && occupant.priority < head.spec().priority() &&
                                  WhyNotPaused(job, kGraceMs).empty());
    }
    for (const NodePart& part : facts.parts) {
      if (part.stopped || part.leftover) continue;
      // The node may never answer, so no job waits for these slots.
      if (facts.GaveUpOn(part, lease_.now())) {
        held[part.node].insert(part.devices.begin(), part.devices.end());
        continue;
      }
      occupant.devices[part.node] = part.devices;
    }
    all.push_back(std::move(occupant));
  }
  AddPreflights(head, &all);
  for (const Occupant& each : all) {
    for (const auto& [node, devices] : each.devices) held[node].insert(devices.begin(), devices.end());
  }
  for (const std::string& node : full_nodes_) {
    const auto view = views_.find(node);
    if (view == views_.end()) continue;
    Occupant occupant;
    occupant.leaves = true;
    for (int device = 0; device < view->second.info.slots(); ++device) {
      if (held[node].count(device) == 0) occupant.devices[node].push_back(device);
    }
    all.push_back(std::move(occupant));
  }
  return all;
}

// A job in PREFLIGHT holds slots without ranks, so it loses nothing. The preflight itself holds the node's
// other slots until it is done.
void Reconciler::AddPreflights(const v1::Job& head, std::vector<Occupant>* all) const {
  std::map<std::string, std::set<int>> held;
  for (const std::string& id : index_.In(JobIndex::View::kPreflight)) {
    const LiveJob& live = jobs_.at(id);
    Occupant occupant;
    occupant.job = id;
    occupant.priority = live.job.spec().priority();
    occupant.start_unix_nanos = absl::ToUnixNanos(parts_.clock->Wall());
    occupant.backfilled = live.job.backfilled() && PlaceInQueue(head) < PlaceInQueue(live.job);
    occupant.may_leave =
        occupant.backfilled || (live.job.preemptible() && occupant.priority < head.spec().priority());
    for (const v1::Job::Placement& each : live.job.reserved_nodes()) {
      occupant.devices[each.node()].assign(each.devices().begin(), each.devices().end());
      held[each.node()].insert(each.devices().begin(), each.devices().end());
    }
    all->push_back(std::move(occupant));
  }
  for (const auto& [node, measurement] : measurements_) {
    const auto view = views_.find(node);
    if (view == views_.end() || PresenceAt(node) == Presence::kLost) continue;
    Occupant occupant;
    occupant.leaves = true;
    for (int device = 0; device < view->second.info.slots(); ++device) {
      if (held[node].count(device) == 0) occupant.devices[node].push_back(device);
    }
    all->push_back(std::move(occupant));
  }
}

// REQUIRES: PREFLIGHT, STARTING or RUNNING.
absl::Status Reconciler::Preempt(LiveJob* live, const v1::Job& head) {
  const bool backfilled = head.spec().priority() <= live->job.spec().priority();
  const std::string preemptor =
      absl::StrCat("preempted by job ", head.id(),
                   backfilled ? std::string(", which reserved its slots")
                              : absl::StrCat(", of priority ", head.spec().priority()));
  if (live->job.state() == v1::JOB_STATE_PREFLIGHT)
    return Commit(live, JobEvent::kUnplace,
                  absl::StrCat(preemptor, ", before its launch; it resumes when slots are free"));
  AttemptFacts* facts = FactsOf(live->job);
  FSDPD_CHECK(facts != nullptr);
  const std::string why_not = WhyNotPaused(live->job, kGraceMs);
  const int64_t grace_ms = why_not.empty() ? kGraceMs : 0;
  FSDPD_RETURN_IF_ERROR(
      Commit(live, JobEvent::kPause,
             absl::StrCat(preemptor, ": the ranks ",
                          why_not.empty() ? std::string("save and leave")
                                          : absl::StrCat("leave without a save (", why_not, ")"),
                          ", and it resumes when slots are free"),
             [&](v1::Job* job) {
               v1::Job::Pause* pause = job->mutable_pause();
               pause->set_unix_nanos(absl::ToUnixNanos(parts_.clock->Wall()));
               pause->set_grace_ms(grace_ms);
               pause->set_resumes_automatically(true);
               pause->set_preempted_by(head.id());
             }));
  BeginStop(facts, grace_ms, preemptor, /*save=*/grace_ms > 0);
  return absl::OkStatus();
}

}  // namespace fsdpd
