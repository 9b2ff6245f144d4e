#include "coordinator/reconcile/job_commands.h"

#include <absl/strings/ascii.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "coordinator/attempt/job_pause.h"
#include "coordinator/job/directory_owner.h"
#include "coordinator/job/job_checkpoints.h"
#include "coordinator/job/job_ledger.h"
#include "coordinator/job/job_machine.h"
#include "coordinator/job/job_plan.h"
#include "coordinator/job/recorded_reason.h"
#include "coordinator/request/errors.h"
#include "coordinator/request/job_etag.h"

namespace fsdpd {
namespace {

// The newest jobs of one directory; ranks detect what older jobs saved there. A spec may have a MiB, and the
// reconciler blocks while they are read.
constexpr int kMaxSharing = 64;
constexpr size_t kMaxSharingBytes = size_t{16} << 20;

constexpr char kStopping[] = "stopping the ranks", kStopsAlready[] = "the ranks leave already";
constexpr char kStoppingRest[] = "stopping what is left of it";
constexpr absl::string_view kCancelWords[] = {kStopping, kStopsAlready, kStoppingRest};

constexpr char kStaysPaused[] = "stays paused";
constexpr absl::string_view kPauseWords[] = {"the ranks ", "paused before it", kStaysPaused};

std::string With(const std::string& words, const std::string& reason) {
  return reason.empty() ? words : absl::StrCat(words, ": ", reason);
}

absl::Status Refused(absl::string_view reason, const v1::Job& job, absl::string_view what,
                     absl::string_view why) {
  return WrongState(IsEnded(job.state()) ? "JOB_ENDED" : reason, absl::StrCat("jobs/", job.id()),
                    absl::StrCat("job ", job.id(), " cannot be ", what, ": ", why));
}

// A user holds the job: it does not resume by itself.
void HoldForUser(v1::Job::Pause* pause) {
  pause->set_resumes_automatically(false);
  pause->clear_preempted_by();
  pause->clear_drained_from();
}

}  // namespace

absl::Status JobCommands::CheckEtag(const std::string& id, const std::string& etag) const {
  if (etag.empty()) return absl::OkStatus();
  const LiveJob* live = parts_.jobs->Find(id);
  const absl::StatusOr<v1::Job> job = live != nullptr ? JobTable::Shown(*live) : parts_.store->Get(id);
  if (!job.ok()) return job.status();
  const std::string now = EtagOf(*job);
  if (now == etag) return absl::OkStatus();
  return Refusal(
      absl::StatusCode::kAborted, "JOB_CHANGED",
      absl::StrCat("job ", id, ": the etag does not match, because the job has changed (it is ",
                   absl::AsciiStrToLower(ShortName(job->state())), ", in revision ", job->revision(), ")"),
      {{"etag", now}});
}

absl::StatusOr<v1::Job> JobCommands::Cancel(const std::string& id, const std::string& reason,
                                            int64_t grace_ms) {
  LiveJob* const live = parts_.jobs->Find(id);
  if (live == nullptr) return parts_.store->Get(id);
  parts_.presence->Read();  // A lost node may return in this turn of the loop.
  AttemptFacts* facts = parts_.attempts->Find(live->job);
  // Ranks that already exit without a save cannot be ordered to save.
  const bool may_save = facts == nullptr || !facts->stop.has_value() || facts->stop->save;
  const bool saves = may_save && grace_ms > 0 && !FilledSpec(live->job).checkpoint().dir().empty();
  const JobTable::Edit keep_grace = [&](v1::Job* job) {
    job->mutable_cancellation()->set_unix_nanos(absl::ToUnixNanos(parts_.clock->Wall()));
    // Ranks that already exit keep their shorter grace, also after a restart of the coordinator.
    const bool leaves = facts != nullptr && facts->stop.has_value();
    job->mutable_cancellation()->set_grace_ms(leaves ? std::min(grace_ms, facts->stop->grace_ms) : grace_ms);
  };
  if (live->job.state() != v1::JOB_STATE_CANCELLING) {
    const bool idle = !HasAttempt(live->job.state());
    // Ranks of the last attempt may be back on a node that was lost; the job ends when they have exited.
    const bool rest = idle && !parts_.attempts->LeftoversOf(id).empty();
    const std::string words =
        absl::StrCat(rest    ? std::string(kStoppingRest)
                     : idle  ? absl::StrCat(IdleCancelReason(live->job), PossibleLeftovers(live->job))
                     : saves ? absl::StrCat(kStopping, ", which save first if the grace suffices")
                             : std::string(kStopping),
                     reason.empty() ? "" : ": ", reason);
    absl::Status cancelled =
        parts_.jobs->Commit(live, rest ? JobEvent::kCancelRest : JobEvent::kCancel, words, keep_grace);
    // A queued or paused job has no ranks to stop, so an unstored cancel is refused: a restarted coordinator
    // would not know of it and launch the job.
    if (!cancelled.ok() && !idle)
      cancelled = parts_.jobs->CommitUnstored(live, JobEvent::kCancel, words, cancelled, keep_grace);
    if (!cancelled.ok()) return cancelled;
    if (rest && facts == nullptr) facts = parts_.attempts->OpenGone(live->job);
  } else if (!reason.empty() &&
             !HasRecordedReason(live->job, reason, {v1::JOB_STATE_CANCELLING}, kCancelWords)) {
    // The ranks exit even if the new reason cannot be stored.
    const std::string words = absl::StrCat(kStopsAlready, ": ", reason);
    if (const absl::Status stored = parts_.jobs->Commit(live, JobEvent::kNote, words); !stored.ok())
      parts_.jobs->CommitUnstored(live, JobEvent::kNote, words, stored).IgnoreError();
  }
  v1::Job answer = JobTable::Shown(*live);
  if (live->job.state() == v1::JOB_STATE_CANCELLING) {
    // A second cancel may shorten the grace, never lengthen it.
    const bool shorter = !facts->stop.has_value() || grace_ms < facts->stop->grace_ms;
    if (shorter) {
      keep_grace(&live->job);
      parts_.jobs->MarkUnsaved(live);
      parts_.attempts->BeginStop(facts, grace_ms, reason.empty() ? "cancelled" : reason, saves);
    }
  }
  parts_.jobs->ForgetIfEnded(id);
  return answer;
}

// The job of an id that is not live, or the error.
absl::Status JobCommands::RefuseEnded(const std::string& id, const char* what, const char* hint) {
  FSDPD_ASSIGN_OR_RETURN(const v1::Job ended, parts_.store->Get(id));
  return Refused("JOB_ENDED", ended, what,
                 absl::StrCat("it has ", ended.state() == v1::JOB_STATE_CANCELLED ? "been " : "",
                              absl::AsciiStrToLower(ShortName(ended.state())), ": ", ended.reason(),
                              ended.state() == v1::JOB_STATE_SUCCEEDED ? "" : hint));
}

absl::StatusOr<v1::Job> JobCommands::Pause(const std::string& id, const std::string& reason,
                                           int64_t grace_ms) {
  LiveJob* const live = parts_.jobs->Find(id);
  if (live == nullptr) return RefuseEnded(id, "paused", "");
  parts_.presence->Read();
  const v1::JobState before = live->job.state();
  // A new reason is recorded; a repeated call is not.
  const bool heard =
      reason.empty() ||
      HasRecordedReason(live->job, reason, {v1::JOB_STATE_PAUSING, v1::JOB_STATE_PAUSED}, kPauseWords);
  if (before == v1::JOB_STATE_PAUSED) {
    // If it resumes automatically, that could not be stored yet.
    if (live->job.pause().resumes_automatically() || !heard)
      FSDPD_RETURN_IF_ERROR(parts_.jobs->Commit(live, JobEvent::kNote, With(kStaysPaused, reason),
                                                [](v1::Job* job) { HoldForUser(job->mutable_pause()); }));
    return JobTable::Shown(*live);
  }
  if (const std::string why = WhyNotPaused(live->job, grace_ms); !why.empty())
    return Refused("JOB_NOT_PAUSABLE", live->job, "paused", why);
  const bool again = before == v1::JOB_STATE_PAUSING;
  AttemptFacts* facts = HasAttempt(before) ? parts_.attempts->Find(live->job) : nullptr;
  // Ranks of a failed attempt are exiting, and can no longer save together.
  const bool may_save = facts == nullptr || !facts->stop.has_value() || facts->stop->save;
  const bool saves = may_save && grace_ms > 0;
  // A second request may shorten the grace, never lengthen it.
  const bool shorter = facts != nullptr && (!facts->stop.has_value() || grace_ms < facts->stop->grace_ms);
  const bool as_it_is = again && !shorter && !live->job.pause().resumes_automatically();
  const std::string words =
      With(!HasAttempt(before)
               ? absl::StrCat("paused before ", live->job.attempt() == 0 ? "it" : "its next attempt",
                              " was launched", PossibleLeftovers(live->job))
           : as_it_is ? std::string("the ranks are leaving")
           : saves    ? std::string("the ranks save and leave")
                      : std::string("the ranks leave"),
           reason);
  if (as_it_is && heard) return JobTable::Shown(*live);
  FSDPD_RETURN_IF_ERROR(
      parts_.jobs->Commit(live, again ? JobEvent::kNote : JobEvent::kPause, words, [&](v1::Job* job) {
        v1::Job::Pause* pause = job->mutable_pause();
        HoldForUser(pause);
        pause->clear_unconfirmed();  // The next tick sets it again.
        if (again && !shorter) return;
        pause->set_unix_nanos(absl::ToUnixNanos(parts_.clock->Wall()));
        pause->set_grace_ms(grace_ms);
        if (facts == nullptr) SetHold(job);
      }));
  v1::Job answer = JobTable::Shown(*live);
  if (shorter) parts_.attempts->BeginStop(facts, grace_ms, With("paused", reason), saves);
  return answer;
}

absl::StatusOr<v1::Job> JobCommands::Resume(const std::string& id, const std::string& reason) {
  LiveJob* const live = parts_.jobs->Find(id);
  if (live == nullptr) return RefuseEnded(id, "resumed", "; `fsdpctl retry` resumes it");
  if (live->job.state() == v1::JOB_STATE_CANCELLING)
    return Refused("JOB_NOT_RESUMABLE", live->job, "resumed", "it is being cancelled");
  if (live->job.state() == v1::JOB_STATE_PAUSED) FSDPD_RETURN_IF_ERROR(Requeue(live, reason));
  if (live->job.state() == v1::JOB_STATE_PAUSING && !live->job.pause().resumes_automatically()) {
    // Its ranks already exit, and might stop at different steps if some were called back.
    const bool lost = live->job.pause().unconfirmed_size() > 0;
    const char* when = lost ? "continues without the lost nodes" : "continues once it is paused";
    FSDPD_RETURN_IF_ERROR(parts_.jobs->Commit(live, JobEvent::kNote, With(when, reason), [](v1::Job* job) {
      job->mutable_pause()->set_resumes_automatically(true);
    }));
  }
  return JobTable::Shown(*live);
}

void JobCommands::ResumeAutomatically() {
  // Changes that cannot be stored are retried in the next tick.
  for (const std::string& id : parts_.jobs->In(JobIndex::View::kResuming))
    Requeue(&parts_.jobs->At(id), "").IgnoreError();
}

// REQUIRES: PAUSED.
absl::Status JobCommands::Requeue(LiveJob* live, const std::string& reason) {
  const int64_t step = live->job.pause().step();
  const v1::Job::Pause& pause = live->job.pause();
  const bool by_itself = !pause.preempted_by().empty() || !pause.drained_from().empty();
  const char* how = by_itself ? "waits for slots again" : "resumed";
  const std::string from = step > 0 ? absl::StrCat(how, ", to resume after step ", step) : std::string(how);
  live->not_before = absl::InfinitePast();
  return parts_.jobs->Commit(live, JobEvent::kResume, With(from, reason));
}

absl::Status JobCommands::CheckDirectory(const v1::Job& ended) {
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
absl::StatusOr<v1::Job> JobCommands::Retry(const std::string& id, const std::string& reason) {
  if (const LiveJob* found = parts_.jobs->Find(id)) {
    const v1::Job& job = found->job;
    if (job.state() == v1::JOB_STATE_CANCELLING)
      return Refused("JOB_NOT_ENDED", job, "retried", "it is being cancelled; wait until it has ended");
    if (job.state() == v1::JOB_STATE_PAUSED || job.state() == v1::JOB_STATE_PAUSING)
      return Refused(
          "JOB_NOT_ENDED", job, "retried",
          absl::StrCat("it is ", absl::AsciiStrToLower(ShortName(job.state())), "; use `fsdpctl resume`"));
    return JobTable::Shown(*found);
  }
  FSDPD_ASSIGN_OR_RETURN(v1::Job ended, parts_.store->Get(id));
  if (!IsEnded(ended.state())) return Refused("JOB_NOT_ENDED", ended, "retried", "it has not run yet");
  if (ended.state() == v1::JOB_STATE_SUCCEEDED)
    return Refused("JOB_ENDED", ended, "retried",
                   "it has succeeded; `fsdpctl submit --from` starts another from its last checkpoint");
  FSDPD_RETURN_IF_ERROR(CheckDirectory(ended));
  parts_.presence->Read();
  const int counted = CountedAttempts(ended);
  const int64_t saved = ended.checkpoints().empty() ? 0 : ended.checkpoints().rbegin()->step();
  const std::string words = With(
      saved > 0 ? absl::StrCat("retried, to resume after step ", saved) : std::string("retried"), reason);
  LiveJob& live = parts_.jobs->Add(std::move(ended));
  ResumeLedger(parts_.jobs->ledger_date().Now(), &live.job);
  const absl::Status stored = parts_.jobs->Commit(&live, JobEvent::kUserRetry, words, [&](v1::Job* job) {
    // Earlier attempts and rewinds do not count.
    job->set_drains_since_checkpoint(job->drains_since_checkpoint() + counted);
    job->set_uncounted_attempt(job->attempt());
    job->set_checkpoint_attempt_uncounted(!job->checkpoints().empty());
    job->clear_rewinds();
    job->clear_cancellation();
    // As ForgetDeletedHost() does for live jobs.
    auto* hosts = job->mutable_deleted_hosts();
    const auto is_back = [&](const std::string& node) {
      return parts_.presence->Find(node) != nullptr || parts_.records->WasDeletedWithout(node, id);
    };
    hosts->erase(std::remove_if(hosts->begin(), hosts->end(), is_back), hosts->end());
  });
  if (stored.ok()) return JobTable::Shown(live);
  parts_.jobs->Remove(id);
  return stored;
}

absl::StatusOr<v1::Job> JobCommands::Delete(const std::string& id,
                                            std::vector<std::string>* unconfirmed_nodes) {
  if (const LiveJob* live = parts_.jobs->Find(id))
    return Refused("JOB_NOT_ENDED", live->job, "deleted", "it has not ended; cancel it first");
  FSDPD_ASSIGN_OR_RETURN(v1::Job job, parts_.store->Get(id));
  // Stored, but not yet known to the reconciler: it is being submitted.
  if (!IsEnded(job.state())) return Refused("JOB_NOT_ENDED", job, "deleted", "it has not ended");
  FSDPD_RETURN_IF_ERROR(parts_.dependencies->Release(job));
  v1::Event deleted;
  deleted.set_unix_nanos(absl::ToUnixNanos(parts_.clock->Wall()));
  deleted.set_kind(v1::EVENT_KIND_DELETED);
  deleted.set_job(id);
  deleted.set_attempt(job.attempt());
  *unconfirmed_nodes = parts_.presence->LostWithRanksOf(id);
  const std::string nodes = absl::StrJoin(*unconfirmed_nodes, ", ");
  deleted.set_message(nodes.empty() ? "deleted"
                                    : absl::StrCat("deleted: its ranks may still run on lost node ", nodes));
  FSDPD_RETURN_IF_ERROR(parts_.store->Delete(id, {deleted}));
  LogInfo("job deleted job=%s unconfirmed_nodes=%s", id, nodes);
  parts_.ended->Forget(id);
  return job;
}

// For an idle job: names the nodes that were lost with ranks of it, also that of its last failure; or "".
std::string JobCommands::PossibleLeftovers(const v1::Job& job) const {
  std::vector<std::string> lost = parts_.presence->LostWithRanksOf(job.id());
  const std::string& node = job.failure().node();
  const bool of_last = job.failure().attempt() == job.attempt() && !node.empty();
  if (of_last && parts_.presence->Of(node) == Presence::kLost &&
      std::count(lost.begin(), lost.end(), node) == 0)
    lost.push_back(node);
  if (lost.empty()) return "";
  return absl::StrCat(" (node ", absl::StrJoin(lost, ", "), lost.size() == 1 ? " is" : " are",
                      " lost: the end of its ranks could not be confirmed)");
}

}  // namespace fsdpd
