#include "coordinator/reconcile/attempt_judge.h"

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/strip.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/text.h"
#include "coordinator/attempt/failure_policy.h"
#include "coordinator/attempt/job_pause.h"
#include "coordinator/job/bad_steps.h"
#include "coordinator/job/job_checkpoints.h"
#include "coordinator/job/job_ledger.h"
#include "coordinator/job/job_machine.h"
#include "coordinator/job/job_plan.h"

namespace fsdpd {
namespace {

// All steps are done, and the rest may take long: a checkpoint, or an export of the model.
bool WritesFinalOutput(const v1::Job& job) {
  const v1::JobSpec spec = FilledSpec(job);
  const bool writes = spec.checkpoint().on_end() || !spec.checkpoint().export_().empty();
  return writes && job.last_step().step() == spec.train().steps();
}

}  // namespace

void AttemptJudge::AdvanceAll() {
  std::vector<v1::Job> notes;
  for (const std::string& id : parts_.jobs->In(JobIndex::View::kLaunched)) Advance(id, &notes);
  parts_.jobs->CommitAll(std::move(notes));
}

void AttemptJudge::Advance(const std::string& id) {
  std::vector<v1::Job> notes;
  Advance(id, &notes);
  parts_.jobs->CommitAll(std::move(notes));
}

void AttemptJudge::Advance(const std::string& id, std::vector<v1::Job>* notes) {
  if (!parts_.jobs->Leads()) return;
  LiveJob& live = parts_.jobs->At(id);
  AttemptFacts* facts = parts_.attempts->Find(live.job);
  FSDPD_CHECK(facts != nullptr);
  for (NodePart& part : facts->parts) {
    const NodeView* view = parts_.presence->Find(part.node);
    part.revoked = view != nullptr && !view->revoked_serial.empty();
  }
  const Verdict verdict = Judge(live.job, *facts, parts_.presence->AsFunction(), parts_.presence->now(),
                                options_, EarlierAttemptsOf(live.job));
  if (!verdict.event.has_value()) {
    ShortenUselessSave(&live, facts);
    return ReportStall(&live, facts);
  }
  const JobTable::Edit edit = [&](v1::Job* job) { ApplyVerdict(verdict, *facts, job); };
  const bool is_note = *verdict.event == JobEvent::kNote;
  // Ranks have returned, and readers must see that while the store still fails.
  const bool is_urgent = is_note && absl::StartsWith(live.job.reason(), kWaitsForStore);
  if ((is_note && !is_urgent) || *verdict.event == JobEvent::kReady) {
    absl::StatusOr<v1::Job> next = parts_.jobs->After(live, *verdict.event, verdict.reason, edit);
    if (next.ok()) notes->push_back(*std::move(next));
    return;
  }
  absl::Status stored = parts_.jobs->Commit(&live, *verdict.event, verdict.reason, edit);
  // The rest of a failed attempt is stopped, and shown as such, even if that cannot be stored: its ranks may
  // hang.
  if (!stored.ok() && (*verdict.event == JobEvent::kFail || is_urgent))
    stored = parts_.jobs->CommitUnstored(&live, *verdict.event, verdict.reason, stored, edit);
  // Its ranks are gone: readers see that the job waits for nothing else.
  if (!stored.ok() && *verdict.event == JobEvent::kRanksGone) {
    const std::string words = absl::StrCat(kWaitsForStore, verdict.reason);
    if (words != live.job.reason())
      parts_.jobs->CommitUnstored(&live, JobEvent::kNote, words, stored).IgnoreError();
  }
  if (!stored.ok()) return;  // The next tick judges again.
  if (*verdict.event == JobEvent::kRetry) live.not_before = parts_.presence->now() + verdict.retry_after;
  parts_.health->OnAttemptOver(live.job, *verdict.event);
  // A finished attempt is stopped too: its slots are free once the agents confirm that nothing is left.
  if (*verdict.event == JobEvent::kFail || *verdict.event == JobEvent::kFinish) {
    parts_.attempts->BeginStop(facts, kStopGraceMs, verdict.reason);
  }
  parts_.jobs->ForgetIfEnded(id);
}

void AttemptJudge::ApplyVerdict(const Verdict& verdict, const AttemptFacts& facts, v1::Job* job) const {
  if (verdict.failure.has_value()) *job->mutable_failure() = *verdict.failure;
  // The positions in the failure are newer.
  if (verdict.failure.has_value() && verdict.failure->has_hang()) job->clear_positions();
  if (verdict.failure.has_value() && verdict.failure->has_hang()) MoveHang(verdict.failure->hang(), job);
  if (!verdict.node.empty()) job->mutable_events()->rbegin()->set_node(verdict.node);
  if (verdict.rewinds) NoteExcluded(job);
  if (verdict.rewinds) Rewind(job);
  if (verdict.drained) ExcludeAttempt(job);
  if (verdict.pause.has_value()) KeepPause(*verdict.pause, job);
  if (verdict.unconfirmed.has_value())
    job->mutable_pause()->mutable_unconfirmed()->Assign(verdict.unconfirmed->begin(),
                                                        verdict.unconfirmed->end());
  if (verdict.refused) job->set_refused_launches(job->refused_launches() + 1);
  if (verdict.failure.has_value()) KeepFailedAttempt(job);
  NumberAfter(verdict.number_after, job);
  if (!IsEnded(job->state())) return;
  // An agent that was disconnected may report an end that is long past.
  const absl::Time ended = std::min(facts.LastEnd(), parts_.clock->Now());
  job->set_end_unix_nanos(std::max(job->start_unix_nanos(), absl::ToUnixNanos(parts_.clock->WallOf(ended))));
  EndLedger(std::max(parts_.jobs->ledger_date().Of(ended), absl::FromUnixNanos(job->start_unix_nanos())),
            job);
}

EarlierAttempts AttemptJudge::EarlierAttemptsOf(const v1::Job& job) const {
  EarlierAttempts earlier;
  const bool leaves = job.state() == v1::JOB_STATE_PAUSING || job.state() == v1::JOB_STATE_CANCELLING;
  const bool starts_again = job.state() == v1::JOB_STATE_STARTING && job.attempt() > 1;
  if (leaves || starts_again) earlier.lost = parts_.presence->LostWithRanksOf(job.id());
  if (starts_again) earlier.deleted.assign(job.deleted_hosts().begin(), job.deleted_hosts().end());
  earlier.ending = leaves && !parts_.attempts->LeftoversOf(job.id()).empty();
  return earlier;
}

// Reports a stall with the positions of the ranks, without any action: steps may just be slow. The verdict
// handles an attempt in which nothing progresses.
void AttemptJudge::ReportStall(LiveJob* live, AttemptFacts* facts) {
  const v1::Job& job = live->job;
  if (!Trains(job) || parts_.presence->Of(facts->PartOfRank(0)->node) != Presence::kConnected) return;
  const bool stalled = facts->pace.Stalled(parts_.presence->now()) && !WritesFinalOutput(job);
  const bool reported = job.stalled_since_unix_nanos() != 0;
  const absl::Time since = reported ? absl::FromUnixNanos(job.stalled_since_unix_nanos())
                                    : parts_.clock->WallOf(facts->pace.since());
  const std::string time = HumanSeconds(absl::ToDoubleSeconds(parts_.clock->Wall() - since));
  std::string reason;
  if (stalled && !reported) {
    reason = absl::StrCat("no step for ", time);
    if (job.has_last_step())
      absl::StrAppend(&reason, "; the last one took ", HumanSeconds(job.last_step().step_seconds()));
  } else if (reported && !stalled && facts->stepped) {
    reason = absl::StrCat("steps continued after ", time, " without one");
  } else {
    return;
  }
  const absl::Status stored = parts_.jobs->Commit(live, JobEvent::kNote, reason, [&](v1::Job* edited) {
    edited->set_stalled_since_unix_nanos(stalled ? absl::ToUnixNanos(since) : 0);
    edited->clear_positions();
  });
  // If this could not be stored, the next tick tries again.
  if (stored.ok() && stalled) parts_.attempts->SendLocate(*facts, reason);
}

// Ranks that save wait for each other's files until their grace is over. Without one of them that cannot
// succeed, so the grace is shortened.
void AttemptJudge::ShortenUselessSave(LiveJob* live, AttemptFacts* facts) {
  if (!facts->stop.has_value() || !facts->stop->save) return;
  const std::string why = WhyNothingIsSaved(*facts, parts_.presence->AsFunction());
  if (why.empty()) return;
  facts->why_unsaved = absl::EndsWith(why, kIsLost) ? absl::StrCat(absl::StripSuffix(why, kIsLost),
                                                                   " was lost before its ranks had saved")
                                                    : why;
  const std::string reason = absl::StrCat("no checkpoint can be saved any more: ", why);
  absl::Status stored = parts_.jobs->Commit(live, JobEvent::kNote, reason);
  // Even if that cannot be stored: the ranks are already leaving.
  if (!stored.ok()) stored = parts_.jobs->CommitUnstored(live, JobEvent::kNote, reason, stored);
  if (stored.ok()) parts_.attempts->BeginStop(facts, std::min(facts->stop->grace_ms, kStopGraceMs), reason);
}

}  // namespace fsdpd
