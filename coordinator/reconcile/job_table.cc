#include "coordinator/reconcile/job_table.h"

#include <absl/strings/str_cat.h>

#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "coordinator/metrics/meters.h"

namespace fsdpd {
namespace {

constexpr absl::Duration kStoreErrorPause = absl::Seconds(10);

// Kinds of events that begin or end an attempt.
bool IsAttemptEvent(v1::EventKind kind) {
  return kind == v1::EVENT_KIND_LAUNCHED || kind == v1::EVENT_KIND_SUCCEEDED ||
         kind == v1::EVENT_KIND_RANKS_EXITED;
}

// Adds the cause and the node to the event of a change.
void AddCause(v1::Job* changed) {
  v1::Job::Event* event = changed->mutable_events(changed->events_size() - 1);
  const v1::EventKind kind = event->kind();
  if (kind == v1::EVENT_KIND_ATTEMPT_FAILED || kind == v1::EVENT_KIND_FAILED) {
    event->set_node(changed->failure().node());
    event->set_cause(changed->failure().cause());
  }
  const std::string& drained_from = changed->pause().drained_from();
  if ((kind == v1::EVENT_KIND_PAUSED || kind == v1::EVENT_KIND_RANKS_EXITED) && !drained_from.empty())
    event->set_node(drained_from);
  // An attempt on a single node belongs to that node's history.
  if (event->node().empty() && changed->placements_size() == 1 && IsAttemptEvent(kind))
    event->set_node(changed->placements(0).node());
  if (kind == v1::EVENT_KIND_PAUSED && !changed->pause().preempted_by().empty())
    event->set_kind(v1::EVENT_KIND_PREEMPTED);
  if (kind == v1::EVENT_KIND_PAUSED && !drained_from.empty()) event->set_kind(v1::EVENT_KIND_DRAINED);
}

}  // namespace

QueuePlace PlaceInQueue(const v1::Job& job) {
  return {-job.spec().priority(), job.create_unix_nanos(), job.id()};
}

LiveJob* JobTable::Find(const std::string& id) {
  const auto it = jobs_.find(id);
  return it == jobs_.end() ? nullptr : &it->second;
}

const LiveJob* JobTable::Find(const std::string& id) const {
  const auto it = jobs_.find(id);
  return it == jobs_.end() ? nullptr : &it->second;
}

LiveJob& JobTable::Add(v1::Job job) {
  if (job.state() == v1::JOB_STATE_QUEUED) queue_.insert(PlaceInQueue(job));
  index_.Set(job);
  LiveJob& live = jobs_[job.id()];
  live.job = std::move(job);
  return live;
}

void JobTable::Remove(const std::string& id) {
  index_.Erase(id);
  unsaved_.erase(id);
  jobs_.erase(id);
}

void JobTable::ForgetIfEnded(const std::string& id) {
  const LiveJob* live = Find(id);
  if (live != nullptr && IsEnded(live->job.state())) Remove(id);
}

absl::StatusOr<v1::Job> JobTable::After(const LiveJob& live, JobEvent event, const std::string& reason,
                                        const Edit& edit) const {
  v1::Job next = live.job;
  FSDPD_RETURN_IF_ERROR(Apply(event, reason, parts_.clock->Wall(), ledger_date_.Now(), &next));
  if (edit) edit(&next);
  parts_.store->events().Date(&next);
  AddCause(&next);
  return next;
}

absl::Status JobTable::Commit(LiveJob* live, JobEvent event, const std::string& reason, const Edit& edit) {
  FSDPD_ASSIGN_OR_RETURN(v1::Job next, After(*live, event, reason, edit));
  if (const absl::Status stored = parts_.store->Update(next); !stored.ok()) {
    LogNotStored(next.id(), stored);
    return stored;
  }
  Adopt(live, std::move(next));
  return absl::OkStatus();
}

absl::Status JobTable::CommitUnstored(LiveJob* live, JobEvent event, const std::string& reason,
                                      const absl::Status& why, const Edit& edit) {
  if (!Leads()) return why;
  FSDPD_ASSIGN_OR_RETURN(v1::Job next, After(*live, event, reason, edit));
  Adopt(live, std::move(next), std::string(why.message()));
  return absl::OkStatus();
}

void JobTable::CommitAll(std::vector<v1::Job> changed) {
  if (changed.empty()) return;
  std::vector<const v1::Job*> jobs;
  for (const v1::Job& job : changed) jobs.push_back(&job);
  const std::vector<absl::Status> stored = parts_.store->UpdateAll(jobs);
  for (size_t i = 0; i < changed.size(); ++i) {
    if (!stored[i].ok()) {
      LogNotStored(changed[i].id(), stored[i]);
      continue;
    }
    LiveJob& live = jobs_.at(changed[i].id());
    Adopt(&live, std::move(changed[i]));
  }
}

absl::Status JobTable::GiveUp(LiveJob* live, const std::string& reason) {
  return Commit(live, JobEvent::kGiveUp, reason, [&](v1::Job* job) {
    v1::Job::Failure failure;  // Without the data of an earlier failed attempt.
    failure.set_rank(-1);
    failure.set_error(reason);
    failure.set_cause(v1::FAILURE_CAUSE_CONFIGURATION);
    *job->mutable_failure() = failure;
  });
}

absl::Status JobTable::CommitEdited(LiveJob* live, v1::Job edited) {
  edited.set_revision(edited.revision() + 1);
  FSDPD_RETURN_IF_ERROR(parts_.store->Update(edited));
  live->job = std::move(edited);
  index_.Set(live->job);
  parts_.board->Publish(Shown(*live));
  return absl::OkStatus();
}

void JobTable::Adopt(LiveJob* live, v1::Job next, const std::string& not_on_disk) {
  const QueuePlace place = PlaceInQueue(next);
  if (next.state() == v1::JOB_STATE_QUEUED) {
    queue_.insert(place);
  } else {
    queue_.erase(place);
  }
  const std::string from = ShortName(live->job.state()), to = ShortName(next.state());
  LogInfo("job %s job=%s attempt=%d reason=%s", from == to ? to : absl::StrCat(from, " -> ", to), next.id(),
          next.attempt(), next.reason());
  if (parts_.meters != nullptr) parts_.meters->Changed(live->job, next);
  live->job = std::move(next);
  index_.Set(live->job);
  if (not_on_disk.empty()) {
    unsaved_.erase(live->job.id());
    live->progressed = false;
  } else {
    MarkUnsaved(live);
  }
  live->not_on_disk = not_on_disk;
  parts_.board->Publish(Shown(*live));
}

void JobTable::MarkUnsaved(LiveJob* live) {
  parts_.store->events().Date(&live->job);
  unsaved_.insert(live->job.id());
}

void JobTable::ShowUnsaved(LiveJob* live) {
  MarkUnsaved(live);
  parts_.board->Publish(Shown(*live));
}

// The error is shown to current readers only: once stored, it would be wrong forever.
v1::Job JobTable::Shown(const LiveJob& live) {
  v1::Job job = live.job;
  if (live.not_on_disk.empty()) return job;
  job.set_store_error(live.not_on_disk);
  job.set_reason(absl::StrCat(job.reason(), "; not on disk yet: ", live.not_on_disk));
  return job;
}

void JobTable::SaveRest(absl::Time now, bool all) {
  if (all || now - progress_saved_ >= parts_.progress_every) {
    progress_saved_ = now;
    for (const std::string& id : In(JobIndex::View::kLaunched)) {
      if (LiveJob& live = jobs_.at(id); live.progressed) MarkUnsaved(&live);
    }
  }
  std::vector<LiveJob*> unsaved;
  std::vector<const v1::Job*> jobs;
  for (const std::string& id : unsaved_) {
    LiveJob& live = jobs_.at(id);
    unsaved.push_back(&live);
    jobs.push_back(&live.job);
  }
  if (jobs.empty()) return;
  const std::vector<absl::Status> stored = parts_.store->UpdateAll(jobs);
  for (size_t i = 0; i < jobs.size(); ++i) {
    LiveJob& live = *unsaved[i];
    if (absl::IsOutOfRange(stored[i])) ReportTooLarge(&live, stored[i]);
    if (!stored[i].ok()) {
      LogNotStored(live.job.id(), stored[i]);
      continue;
    }
    live.progressed = false;
    unsaved_.erase(live.job.id());
    if (live.not_on_disk.empty()) continue;
    // Watchers see the end of this error as a change.
    live.not_on_disk.clear();
    live.job.set_revision(live.job.revision() + 1);
    ShowUnsaved(&live);
  }
}

// A full disk fails each job's change in every tick, each with its own message: log at most one per
// kStoreErrorPause.
void JobTable::LogNotStored(const std::string& id, const absl::Status& why) {
  const absl::Time now = parts_.clock->Now();
  if (now < store_error_logged_ + kStoreErrorPause) return;
  LogError("change was not stored; retrying job=%s error=%s", id, why.ToString());
  store_error_logged_ = now;
}

// The store rejects the job until it is smaller; other jobs are stored meanwhile.
void JobTable::ReportTooLarge(LiveJob* live, const absl::Status& why) {
  if (live->not_on_disk == why.message()) return;
  live->not_on_disk = std::string(why.message());
  MarkUnsaved(live);
  LogError("job is too large to store job=%s bytes=%d error=%s", live->job.id(), live->job.ByteSizeLong(),
           live->not_on_disk);
  parts_.board->Replace(Shown(*live));
}

}  // namespace fsdpd
