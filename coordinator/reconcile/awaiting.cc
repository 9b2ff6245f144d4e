// Reconciler: jobs that wait for other jobs to succeed (job_after.h).
#include <absl/strings/str_cat.h>

#include "base/check.h"
#include "coordinator/job/job_machine.h"
#include "coordinator/reconcile/reconciler.h"
#include "coordinator/request/errors.h"

namespace fsdpd {
namespace {

// Limit of jobs that are stored per tick when a job that many others wait for has ended.
constexpr int kMaxNewsPerTick = 16;

}  // namespace

// The states of the jobs that `live` waits for; `live` must outlive the result.
StateOfJob Reconciler::StatesFor(LiveJob* live) {
  return [this, live](const std::string& id) {
    if (const auto it = jobs_.find(id); it != jobs_.end()) {
      live->ended_before.erase(id);  // It was retried.
      return it->second.job.state();
    }
    if (const auto it = live->ended_before.find(id); it != live->ended_before.end()) return it->second;
    const absl::StatusOr<v1::Job> stored = parts_.store->Get(id);
    if (absl::IsNotFound(stored.status())) return v1::JOB_STATE_UNSPECIFIED;
    if (!stored.ok()) return v1::JOB_STATE_QUEUED;  // Store error: draw no conclusion.
    if (IsEnded(stored->state())) live->ended_before[id] = stored->state();
    return stored->state();
  };
}

// Whether all succeeded dependencies are recorded in the waiting jobs: until then no ended job may be
// deleted.
bool Reconciler::AdvanceAwaiting() {
  int news_taken = 0;
  bool all_noted = true;
  std::vector<std::string> ended;
  for (const std::string& id : index_.In(JobIndex::View::kAwaiting)) {
    LiveJob& live = jobs_.at(id);
    const v1::JobState state = live.job.state();
    const DependencyChanges changes = CheckDependencies(live.job, StatesFor(&live));
    const bool ends = !changes.gone.empty() && state == v1::JOB_STATE_QUEUED;
    if (changes.succeeded.empty() && !ends) continue;
    if (++news_taken > kMaxNewsPerTick || !TakeDependencyChanges(&live, changes).ok()) {
      all_noted = false;  // The next tick continues.
      break;
    }
    if (IsEnded(live.job.state())) ended.push_back(id);
  }
  for (const std::string& id : ended) ForgetIfEnded(id);
  return all_noted;
}

absl::Status Reconciler::TakeDependencyChanges(LiveJob* live, const DependencyChanges& changes) {
  const Edit keep = [&](v1::Job* job) { RecordSucceeded(changes, job); };
  if (live->job.state() == v1::JOB_STATE_PAUSED) {  // Its reason is the pause.
    v1::Job updated = live->job;
    keep(&updated);
    updated.set_revision(updated.revision() + 1);
    FSDPD_RETURN_IF_ERROR(parts_.store->Update(updated));
    live->job = std::move(updated);
    index_.Set(live->job);
    parts_.board->Publish(Shown(*live));
    return absl::OkStatus();
  }
  if (!changes.gone.empty()) {
    const std::string words =
        absl::StrCat("waited for the success of job ", changes.gone, ", which was deleted without success");
    return Commit(live, JobEvent::kGiveUp, words, [&](v1::Job* job) {
      v1::Job::Failure failure;  // Without the data of an earlier failed attempt.
      failure.set_rank(-1);
      failure.set_error(words);
      failure.set_cause(v1::FAILURE_CAUSE_CONFIGURATION);
      *job->mutable_failure() = failure;
    });
  }
  v1::Job after = live->job;
  keep(&after);
  const std::string words = WaitsForJobs(after) ? AfterReason(after, StatesFor(live))
                                                : std::string("all jobs that it waited for have succeeded");
  return Commit(live, JobEvent::kNote, words, keep);
}

// Before `deleted` is deleted: jobs that wait for it record its success, or prevent the deletion.
absl::Status Reconciler::ReleaseAwaiting(const v1::Job& deleted) {
  std::vector<std::string> awaiting;
  for (const std::string& id : index_.In(JobIndex::View::kAwaiting)) {
    LiveJob& live = jobs_.at(id);
    if (!WaitsForJob(live.job, deleted.id())) continue;
    awaiting.push_back(id);
    if (deleted.state() != v1::JOB_STATE_SUCCEEDED) continue;
    FSDPD_RETURN_IF_ERROR(TakeDependencyChanges(&live, DependencyChanges{{deleted.id()}, ""}));
  }
  if (deleted.state() == v1::JOB_STATE_SUCCEEDED || awaiting.empty()) return absl::OkStatus();
  const bool one = awaiting.size() == 1;
  return WrongState(
      "JOB_HAS_DEPENDENTS", absl::StrCat("jobs/", deleted.id()),
      absl::StrCat("job ", deleted.id(), " cannot be deleted: ", one ? "job " : "jobs ", JobNames(awaiting),
                   one ? " waits" : " wait", " for its success; cancel ", one ? "it" : "them", " first"));
}

}  // namespace fsdpd
