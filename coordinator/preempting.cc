// Reconciler: jobs that save and leave for one of a higher priority (preemption.h): each is paused, as a
// person would pause it, and resumed at once, so that it goes on when there is room.
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include "base/check.h"
#include "coordinator/job_machine.h"
#include "coordinator/job_pause.h"
#include "coordinator/reconciler.h"

namespace fsdpd {
namespace {

// As long as a person's pause gives: ranks leave as soon as they have saved.
constexpr int64_t kGraceMs = 600000;
constexpr size_t kMaxNames = 4;  // In a sentence.

}  // namespace

// `head` is the first of its queue, and waits for slots. What there is to say of who leaves for it.
std::string Reconciler::MakeRoom(const v1::Job& head, const PlaceRequest& request,
                                 const std::vector<NodeSlots>& slots) {
  const int64_t priority = head.spec().priority();
  for (const std::string& id : ChooseToLeave(request, priority, slots, Occupants(priority))) {
    // What is not stored is chosen again in the next tick, when this one's others leave already.
    if (!HaveLeave(&jobs_.at(id), head).ok()) break;
  }
  std::vector<std::string> leave;
  for (const auto& [id, live] : jobs_) {
    if (live.job.state() == v1::JOB_STATE_PAUSING && live.job.pause().preempted_by() == head.id())
      leave.push_back(id);
  }
  if (leave.empty()) return "";
  const bool one = leave.size() == 1, all = leave.size() <= kMaxNames;
  if (!all) leave.resize(kMaxNames);
  return absl::StrCat("; ", absl::StrJoin(leave, ", "), all ? "" : ", ...",
                      one ? " saves and leaves for it" : " save and leave for it");
}

// Who may leave is said of those of less than `priority` alone.
std::vector<Occupant> Reconciler::Occupants(int64_t priority) const {
  std::vector<Occupant> all;
  for (const auto& [ref, facts] : attempts_) {
    Occupant occupant;
    occupant.job = ref.job;
    occupant.leaves = true;
    if (const auto it = jobs_.find(ref.job); it != jobs_.end() && it->second.job.attempt() == ref.attempt) {
      const v1::Job& job = it->second.job;
      occupant.priority = job.spec().priority();
      occupant.start_unix_nanos = job.start_unix_nanos();
      occupant.leaves = job.state() != v1::JOB_STATE_STARTING && job.state() != v1::JOB_STATE_RUNNING;
      occupant.may_leave =
          job.preemptible() && occupant.priority < priority && WhyNotPaused(job, kGraceMs).empty();
    }
    for (const NodePart& part : facts.parts) {
      if (!part.stopped) occupant.devices[part.node] = part.devices;
    }
    all.push_back(std::move(occupant));
  }
  return all;
}

// REQUIRES: STARTING or RUNNING.
absl::Status Reconciler::HaveLeave(LiveJob* live, const v1::Job& head) {
  AttemptFacts* facts = FactsOf(live->job);
  FSDPD_CHECK(facts != nullptr);
  const std::string who = absl::StrCat("job ", head.id(), ", of priority ", head.spec().priority());
  FSDPD_RETURN_IF_ERROR(Commit(
      live, JobEvent::kPause,
      absl::StrCat(who, ", gets its slots: the ranks save and leave, and it goes on when there is room"),
      [&](v1::Job* job) {
        v1::Job::Pause* pause = job->mutable_pause();
        pause->set_unix_nanos(absl::ToUnixNanos(parts_.clock->Wall()));
        pause->set_grace_ms(kGraceMs);
        pause->set_resumes(true);
        pause->set_preempted_by(head.id());
      }));
  BeginStop(facts, kGraceMs, absl::StrCat(who, ", gets the slots"), /*save=*/true);
  return absl::OkStatus();
}

}  // namespace fsdpd
