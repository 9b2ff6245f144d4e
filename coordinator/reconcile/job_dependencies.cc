#include "coordinator/reconcile/job_dependencies.h"

#include <absl/strings/str_cat.h>

#include "base/check.h"
#include "coordinator/job/job_machine.h"
#include "coordinator/request/errors.h"

namespace fsdpd {
namespace {

// Limit of jobs that are stored per tick when a job that many others wait for has ended.
constexpr int kMaxNewsPerTick = 16;

}  // namespace

StateOfJob JobDependencies::StatesFor(LiveJob* live) {
  return [this, live](const std::string& id) {
    if (const LiveJob* other = jobs_->Find(id)) {
      live->ended_before.erase(id);  // It was retried.
      return other->job.state();
    }
    if (const auto it = live->ended_before.find(id); it != live->ended_before.end()) return it->second;
    const absl::StatusOr<v1::Job> stored = store_->Get(id);
    if (absl::IsNotFound(stored.status())) return v1::JOB_STATE_UNSPECIFIED;
    if (!stored.ok()) return v1::JOB_STATE_QUEUED;  // Store error: draw no conclusion.
    if (IsEnded(stored->state())) live->ended_before[id] = stored->state();
    return stored->state();
  };
}

bool JobDependencies::Advance() {
  int news_taken = 0;
  bool all_noted = true;
  std::vector<std::string> ended;
  for (const std::string& id : jobs_->In(JobIndex::View::kAwaiting)) {
    LiveJob& live = jobs_->At(id);
    const v1::JobState state = live.job.state();
    const DependencyChanges changes = CheckDependencies(live.job, StatesFor(&live));
    const bool ends = !changes.gone.empty() && state == v1::JOB_STATE_QUEUED;
    if (changes.succeeded.empty() && !ends) continue;
    if (++news_taken > kMaxNewsPerTick || !Record(&live, changes).ok()) {
      all_noted = false;  // The next tick continues.
      break;
    }
    if (IsEnded(live.job.state())) ended.push_back(id);
  }
  for (const std::string& id : ended) jobs_->ForgetIfEnded(id);
  return all_noted;
}

absl::Status JobDependencies::Record(LiveJob* live, const DependencyChanges& changes) {
  const JobTable::Edit keep = [&](v1::Job* job) { RecordSucceeded(changes, job); };
  if (live->job.state() == v1::JOB_STATE_PAUSED) {  // Its reason is the pause.
    v1::Job updated = live->job;
    keep(&updated);
    return jobs_->CommitEdited(live, std::move(updated));
  }
  if (!changes.gone.empty()) {
    return jobs_->GiveUp(live, absl::StrCat("waited for the success of job ", changes.gone,
                                            ", which was deleted without success"));
  }
  v1::Job after = live->job;
  keep(&after);
  const std::string words = WaitsForJobs(after) ? AfterReason(after, StatesFor(live))
                                                : std::string("all jobs that it waited for have succeeded");
  return jobs_->Commit(live, JobEvent::kNote, words, keep);
}

absl::Status JobDependencies::Release(const v1::Job& deleted) {
  std::vector<std::string> awaiting;
  for (const std::string& id : jobs_->In(JobIndex::View::kAwaiting)) {
    LiveJob& live = jobs_->At(id);
    if (!WaitsForJob(live.job, deleted.id())) continue;
    awaiting.push_back(id);
    if (deleted.state() != v1::JOB_STATE_SUCCEEDED) continue;
    FSDPD_RETURN_IF_ERROR(Record(&live, DependencyChanges{{deleted.id()}, ""}));
  }
  if (deleted.state() == v1::JOB_STATE_SUCCEEDED || awaiting.empty()) return absl::OkStatus();
  const bool one = awaiting.size() == 1;
  return WrongState(
      "JOB_HAS_DEPENDENTS", absl::StrCat("jobs/", deleted.id()),
      absl::StrCat("job ", deleted.id(), " cannot be deleted: ", one ? "job " : "jobs ", JobNames(awaiting),
                   one ? " waits" : " wait", " for its success; cancel ", one ? "it" : "them", " first"));
}

}  // namespace fsdpd
