// Reconciler: requests for a job other than its cancellation (agent_events.cc): pause, resume, retry and
// delete, each decided within a tick. A request is stored before it acts; if that fails, it is refused and
// the job is unchanged. Also the deletion of old ended jobs.
#include <absl/strings/ascii.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include <algorithm>
#include <memory>

#include "base/check.h"
#include "base/log.h"
#include "coordinator/attempt/job_pause.h"
#include "coordinator/job/job_checkpoints.h"
#include "coordinator/job/job_directory.h"
#include "coordinator/job/job_machine.h"
#include "coordinator/job/job_plan.h"
#include "coordinator/job/recorded_reason.h"
#include "coordinator/reconcile/reconciler.h"
#include "coordinator/request/errors.h"

namespace fsdpd {
namespace {

constexpr absl::Duration kForgetEvery = absl::Seconds(10);
// In one transaction, which must not delay a tick.
constexpr int kMaxForgotten = 256;
// Per tick, over all nodes: about 5 ms. 256 jobs of 2,000 nodes take 64 ticks.
constexpr size_t kMaxForgetsSent = 8192;
// The newest jobs of one directory; ranks detect what older jobs saved there. A spec may have a MiB, and the
// reconciler blocks while they are read.
constexpr int kMaxSharing = 64;
constexpr size_t kMaxSharingBytes = size_t{16} << 20;

std::string With(const std::string& words, const std::string& reason) {
  return reason.empty() ? words : absl::StrCat(words, ": ", reason);
}

constexpr char kStaysPaused[] = "stays paused";
constexpr absl::string_view kPauseWords[] = {"the ranks ", "paused before it", kStaysPaused};

absl::Status Refused(absl::string_view reason, const v1::Job& job, absl::string_view what,
                     absl::string_view why) {
  return WrongState(IsEnded(job.state()) ? "JOB_ENDED" : reason, absl::StrCat("jobs/", job.id()),
                    absl::StrCat("job ", job.id(), " cannot be ", what, ": ", why));
}

}  // namespace

absl::StatusOr<v1::Job> Reconciler::Pause(const std::string& id, const std::string& reason, int64_t grace_ms,
                                          const std::string& etag) {
  return CallWithEtag(id, etag, "paused",
                      [=](const Answer& answer) { TakePause(id, reason, grace_ms, answer); });
}

absl::StatusOr<v1::Job> Reconciler::Resume(const std::string& id, const std::string& reason,
                                           const std::string& etag) {
  return CallWithEtag(id, etag, "resumed", [=](const Answer& answer) { TakeResume(id, reason, answer); });
}

absl::StatusOr<v1::Job> Reconciler::Retry(const std::string& id, const std::string& reason,
                                          const std::string& etag) {
  return CallWithEtag(id, etag, "retried", [=](const Answer& answer) { TakeRetry(id, reason, answer); });
}

absl::StatusOr<v1::Job> Reconciler::Delete(const std::string& id, const std::string& etag,
                                           std::vector<std::string>* unconfirmed_nodes) {
  const auto nodes = std::make_shared<std::vector<std::string>>();  // Outlives a call that gives up.
  absl::StatusOr<v1::Job> job =
      CallWithEtag(id, etag, "deleted", [=](const Answer& answer) { answer(TakeDelete(id, nodes.get())); });
  if (job.ok() && unconfirmed_nodes != nullptr) *unconfirmed_nodes = std::move(*nodes);
  return job;
}

// The job of an id that is not live, or the error.
absl::Status Reconciler::RefuseEnded(const std::string& id, const char* what, const char* hint) {
  const absl::StatusOr<v1::Job> ended = parts_.store->Get(id);
  if (!ended.ok()) return ended.status();
  return Refused("JOB_ENDED", *ended, what,
                 absl::StrCat("it has ", ended->state() == v1::JOB_STATE_CANCELLED ? "been " : "",
                              absl::AsciiStrToLower(ShortName(ended->state())), ": ", ended->reason(),
                              ended->state() == v1::JOB_STATE_SUCCEEDED ? "" : hint));
}

void Reconciler::TakePause(const std::string& id, const std::string& reason, int64_t grace_ms,
                           const Answer& answer) {
  const auto it = jobs_.find(id);
  if (it == jobs_.end()) return answer(RefuseEnded(id, "paused", ""));
  LiveJob& live = it->second;
  ReadPresence();
  const v1::JobState before = live.job.state();
  // A new reason is recorded; a repeated call is not.
  const bool heard =
      reason.empty() ||
      HasRecordedReason(live.job, reason, {v1::JOB_STATE_PAUSING, v1::JOB_STATE_PAUSED}, kPauseWords);
  if (before == v1::JOB_STATE_PAUSED) {
    absl::Status held;
    if (live.job.pause().resumes_automatically() ||
        !heard)  // Its automatic resumption could not be stored yet.
      held = Commit(&live, JobEvent::kNote, With(kStaysPaused, reason), [](v1::Job* job) {
        job->mutable_pause()->set_resumes_automatically(false);
        job->mutable_pause()->clear_preempted_by();
        job->mutable_pause()->clear_drained_from();
      });
    if (!held.ok()) return answer(held);
    return answer(Shown(live));
  }
  if (const std::string why = WhyNotPaused(live.job, grace_ms); !why.empty())
    return answer(Refused("JOB_NOT_PAUSABLE", live.job, "paused", why));
  const bool again = before == v1::JOB_STATE_PAUSING;
  AttemptFacts* facts = HasAttempt(before) ? FactsOf(live.job) : nullptr;
  // Ranks of a failed attempt are exiting, and can no longer save together.
  const bool may_save = facts == nullptr || !facts->stop.has_value() || facts->stop->save;
  const bool saves = may_save && grace_ms > 0;
  // A second request may shorten the grace, never lengthen it.
  const bool shorter = facts != nullptr && (!facts->stop.has_value() || grace_ms < facts->stop->grace_ms);
  const bool as_it_is = again && !shorter && !live.job.pause().resumes_automatically();
  const std::string words =
      With(!HasAttempt(before)
               ? absl::StrCat("paused before ", live.job.attempt() == 0 ? "it" : "its next attempt",
                              " was launched", PossibleLeftovers(live.job))
           : as_it_is ? std::string("the ranks are leaving")
           : saves    ? std::string("the ranks save and leave")
                      : std::string("the ranks leave"),
           reason);
  if (as_it_is && heard) return answer(Shown(live));
  const absl::Status stored =
      Commit(&live, again ? JobEvent::kNote : JobEvent::kPause, words, [&](v1::Job* job) {
        job->mutable_pause()->set_resumes_automatically(false);
        job->mutable_pause()->clear_preempted_by();
        job->mutable_pause()->clear_drained_from();
        job->mutable_pause()->clear_unconfirmed();  // The next tick sets it again.
        if (again && !shorter) return;
        job->mutable_pause()->set_unix_nanos(absl::ToUnixNanos(parts_.clock->Wall()));
        job->mutable_pause()->set_grace_ms(grace_ms);
        if (facts == nullptr) SetHold(job);
      });
  if (!stored.ok()) return answer(stored);
  answer(Shown(live));
  if (shorter) BeginStop(facts, grace_ms, With("paused", reason), saves);
}

void Reconciler::TakeResume(const std::string& id, const std::string& reason, const Answer& answer) {
  const auto it = jobs_.find(id);
  if (it == jobs_.end()) return answer(RefuseEnded(id, "resumed", "; `fsdpctl retry` resumes it"));
  LiveJob& live = it->second;
  if (live.job.state() == v1::JOB_STATE_CANCELLING)
    return answer(Refused("JOB_NOT_RESUMABLE", live.job, "resumed", "it is being cancelled"));
  absl::Status stored;
  if (live.job.state() == v1::JOB_STATE_PAUSED) stored = Requeue(&live, reason);
  if (live.job.state() == v1::JOB_STATE_PAUSING && !live.job.pause().resumes_automatically()) {
    // Its ranks already exit, and might stop at different steps if some were called back.
    const bool lost = live.job.pause().unconfirmed_size() > 0;
    const char* when = lost ? "continues without the lost nodes" : "continues once it is paused";
    stored = Commit(&live, JobEvent::kNote, With(when, reason),
                    [](v1::Job* job) { job->mutable_pause()->set_resumes_automatically(true); });
  }
  if (!stored.ok()) return answer(stored);
  answer(Shown(live));
}

// REQUIRES: PAUSED.
absl::Status Reconciler::Requeue(LiveJob* live, const std::string& reason) {
  const int64_t step = live->job.pause().step();
  const v1::Job::Pause& pause = live->job.pause();
  const bool by_itself = !pause.preempted_by().empty() || !pause.drained_from().empty();
  const char* how = by_itself ? "waits for slots again" : "resumed";
  const std::string from = step > 0 ? absl::StrCat(how, ", to resume after step ", step) : std::string(how);
  live->not_before = absl::InfinitePast();
  return Commit(live, JobEvent::kResume, With(from, reason));
}

absl::Status Reconciler::CheckDirectory(const v1::Job& ended) {
  JobQuery query;
  query.limit = kMaxSharing;
  query.max_bytes = kMaxSharingBytes;
  query.directory = DirectoryOf(ended.spec());
  if (query.directory.empty()) return absl::OkStatus();
  FSDPD_ASSIGN_OR_RETURN(const JobPage sharing, parts_.store->List(query));
  const std::string why = WhyDirectoryIsLost(ended, sharing.jobs);
  if (why.empty()) return absl::OkStatus();
  return WrongState("DIRECTORY_IN_USE", absl::StrCat("jobs/", ended.id()),
                    absl::StrCat("job ", ended.id(), " cannot be retried: ", why));
}

// The job keeps its id: its checkpoints are in a directory of its own, and the numbers of attempts and logs
// continue.
void Reconciler::TakeRetry(const std::string& id, const std::string& reason, const Answer& answer) {
  if (const auto it = jobs_.find(id); it != jobs_.end()) {
    const v1::Job& job = it->second.job;
    if (job.state() == v1::JOB_STATE_CANCELLING)
      return answer(
          Refused("JOB_NOT_ENDED", job, "retried", "it is being cancelled; wait until it has ended"));
    if (job.state() == v1::JOB_STATE_PAUSED || job.state() == v1::JOB_STATE_PAUSING)
      return answer(Refused(
          "JOB_NOT_ENDED", job, "retried",
          absl::StrCat("it is ", absl::AsciiStrToLower(ShortName(job.state())), "; use `fsdpctl resume`")));
    return answer(Shown(it->second));
  }
  absl::StatusOr<v1::Job> ended = parts_.store->Get(id);
  if (!ended.ok()) return answer(ended.status());
  if (!IsEnded(ended->state()))
    return answer(Refused("JOB_NOT_ENDED", *ended, "retried", "it has not run yet"));
  if (ended->state() == v1::JOB_STATE_SUCCEEDED)
    return answer(
        Refused("JOB_ENDED", *ended, "retried",
                "it has succeeded; `fsdpctl submit --from` starts another from its last checkpoint"));
  if (const absl::Status free = CheckDirectory(*ended); !free.ok()) return answer(free);
  ReadPresence();
  const int counted = CountedAttempts(*ended);
  const int64_t saved = ended->checkpoints().empty() ? 0 : ended->checkpoints().rbegin()->step();
  const std::string words = With(
      saved > 0 ? absl::StrCat("retried, to resume after step ", saved) : std::string("retried"), reason);
  LiveJob& live = jobs_[id];
  live.job = *std::move(ended);
  ResumeLedger(ledger_date_.Now(), &live.job);
  const absl::Status stored = Commit(&live, JobEvent::kUserRetry, words, [&](v1::Job* job) {
    // Earlier attempts and rewinds do not count.
    job->set_drains_since_checkpoint(job->drains_since_checkpoint() + counted);
    job->set_uncounted_attempt(job->attempt());
    job->set_checkpoint_attempt_uncounted(!job->checkpoints().empty());
    job->clear_rewinds();
    job->clear_cancellation();
    // As ForgetDeletedHost() does for live jobs.
    auto* hosts = job->mutable_deleted_hosts();
    const auto is_back = [&](const std::string& node) {
      return views_.count(node) > 0 || WasDeletedWithout(node, id);
    };
    hosts->erase(std::remove_if(hosts->begin(), hosts->end(), is_back), hosts->end());
  });
  if (stored.ok()) return answer(Shown(live));
  unsaved_.erase(id);  // Relevant if it is too large for the store.
  index_.Erase(id);
  jobs_.erase(id);
  answer(stored);
}

absl::StatusOr<v1::Job> Reconciler::TakeDelete(const std::string& id,
                                               std::vector<std::string>* unconfirmed_nodes) {
  if (const auto it = jobs_.find(id); it != jobs_.end())
    return Refused("JOB_NOT_ENDED", it->second.job, "deleted", "it has not ended; cancel it first");
  FSDPD_ASSIGN_OR_RETURN(v1::Job job, parts_.store->Get(id));
  // Stored, but not yet known to the reconciler: it is being submitted.
  if (!IsEnded(job.state())) return Refused("JOB_NOT_ENDED", job, "deleted", "it has not ended");
  FSDPD_RETURN_IF_ERROR(ReleaseAwaiting(job));
  v1::Event deleted;
  deleted.set_unix_nanos(absl::ToUnixNanos(parts_.clock->Wall()));
  deleted.set_kind(v1::EVENT_KIND_DELETED);
  deleted.set_job(id);
  deleted.set_attempt(job.attempt());
  *unconfirmed_nodes = LostWithRanksOf(id);
  const std::string nodes = absl::StrJoin(*unconfirmed_nodes, ", ");
  deleted.set_message(nodes.empty() ? "deleted"
                                    : absl::StrCat("deleted: its ranks may still run on lost node ", nodes));
  FSDPD_RETURN_IF_ERROR(parts_.store->Delete(id, {deleted}));
  LogInfo("job deleted job=%s unconfirmed_nodes=%s", id, nodes);
  to_forget_.push_back(id);
  return job;
}

void Reconciler::ForgetOldJobs() {
  if (lease_.now() - old_forgotten_ < kForgetEvery || !to_forget_.empty()) return;
  old_forgotten_ = lease_.now();
  const absl::StatusOr<std::vector<std::string>> forgotten =
      parts_.store->ForgetEnded(options_.retention, parts_.clock->Wall(), kMaxForgotten);
  if (!forgotten.ok()) return;  // Store error; the next write reports it.
  to_forget_.assign(forgotten->begin(), forgotten->end());
  if (!forgotten->empty()) {
    for (const std::string& id : index_.In(JobIndex::View::kAwaiting)) jobs_.at(id).ended_before.clear();
  }
  if (!forgotten->empty())
    LogInfo("old jobs deleted jobs=%d first=%s", forgotten->size(), forgotten->front());
}

// Agents that are away retain logs up to their own limits.
void Reconciler::SendForgets() {
  size_t sent = 0;
  while (!to_forget_.empty() && sent < kMaxForgetsSent) {
    v1::CoordinatorMessage message;
    message.mutable_delete_job_files()->set_job_id(to_forget_.front());
    to_forget_.pop_front();
    for (const auto& [node, view] : views_) {
      if (view.connected) parts_.nodes->Send(node, message);
    }
    sent += std::max<size_t>(1, views_.size());
  }
}

}  // namespace fsdpd
