#include "coordinator/job/job_checkpoints.h"

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include <algorithm>

#include "base/limits.h"
#include "base/text.h"
#include "coordinator/job/attempt_ref.h"
#include "coordinator/job/bad_steps.h"
#include "coordinator/job/job_machine.h"
#include "coordinator/job/job_plan.h"

namespace fsdpd {
namespace {

int AttemptsBefore(const v1::Job& job) { return std::max(0, job.attempt() - 1 - job.refused_launches()); }

// The path identifies the owner; no earlier attempt wrote a checkpoint that the first attempt could restore.
bool IsOwn(const v1::RestoredCheckpoint& restored, const v1::Job& job) {
  return AttemptsBefore(job) > 0 &&
         absl::StartsWith(restored.path(), absl::StrCat(FilledSpec(job).checkpoint().dir(), "/"));
}

// Null if none of them was saved by the current attempt.
const v1::SavedCheckpoint* NewestOfAttempt(const v1::Job& job) {
  if (job.checkpoints().empty() || job.attempts_before_checkpoint() != AttemptsBefore(job)) return nullptr;
  return &job.checkpoints(job.checkpoints_size() - 1);
}

// Steps increase within an attempt, so a step that is not newer is a repeated report.
bool HasReported(const v1::SavedCheckpoint& saved, const v1::Job& job) {
  const v1::SavedCheckpoint* newest = NewestOfAttempt(job);
  if (newest != nullptr && saved.step() <= newest->step()) return true;
  return !saved.error().empty() && job.has_failed_checkpoint() &&
         saved.step() <= job.failed_checkpoint().step();
}

void DropFrom(int64_t step, v1::Job* job) {
  auto* known = job->mutable_checkpoints();
  while (!known->empty() && known->Get(known->size() - 1).step() >= step) known->RemoveLast();
}

void TakeFailed(const v1::SavedCheckpoint& failed, absl::Time now, v1::Job* job) {
  const bool first = !job->has_failed_checkpoint();
  *job->mutable_failed_checkpoint() = failed;
  job->set_revision(job->revision() + 1);
  if (!first) return;
  const bool continues = (job->state() == v1::JOB_STATE_STARTING || job->state() == v1::JOB_STATE_RUNNING) &&
                         failed.step() < FilledSpec(*job).train().steps();
  AddEvent(v1::EVENT_KIND_CHECKPOINT,
           absl::StrCat("checkpoint of step ", failed.step(), " could not be written: ", failed.error(),
                        continues ? "; training continues" : ""),
           now, job);
}

void TakeCommitted(const v1::SavedCheckpoint& saved, absl::Time now, v1::Job* job) {
  const bool news = job->checkpoints().empty() || job->has_failed_checkpoint();
  auto* known = job->mutable_checkpoints();
  // An attempt that rewound, or started fresh, overwrites the checkpoints of earlier attempts.
  DropFrom(saved.step(), job);
  *known->Add() = saved;
  if (known->size() > kMaxKnownCheckpoints) known->DeleteSubrange(0, known->size() - kMaxKnownCheckpoints);
  job->set_attempts_before_checkpoint(AttemptsBefore(*job));
  job->clear_rewinds_since_checkpoint();
  job->clear_drains_since_checkpoint();
  job->clear_checkpoint_attempt_uncounted();
  job->clear_failed_checkpoint();
  job->set_revision(job->revision() + 1);
  if (!news) return;
  AddEvent(v1::EVENT_KIND_CHECKPOINT,
           absl::StrCat("checkpoint of step ", saved.step(), " committed (", HumanBytes(saved.bytes()),
                        " in ", HumanSeconds(saved.seconds()), ")"),
           now, job);
}

// The command that exports the checkpoint later. ckpt writes hf in bfloat16 by default, and no packages.
std::string ExportAdvice(const v1::SavedCheckpoint& exported, const v1::Job& job) {
  if (job.spec().model().has_package()) return "";
  std::string source = "CHECKPOINT";
  for (const v1::SavedCheckpoint& saved : job.checkpoints()) {
    if (saved.step() == exported.step()) source = saved.path();
  }
  const bool peft = exported.format() == "peft", merges = !peft && job.spec().train().has_lora();
  const bool by_default = peft || FilledSpec(job).precision().compute() == v1::DTYPE_BF16;
  return absl::StrCat("; export it with `fsdpctl ckpt ", merges ? "merge " : "convert ", source, " ",
                      exported.path(), merges ? "" : absl::StrCat(" --to ", exported.format()),
                      by_default ? "`" : " --dtype float32`");
}

bool TakeExported(const v1::SavedCheckpoint& exported, absl::Time now, v1::Job* job) {
  if (job->has_exported() && job->exported().unix_nanos() == exported.unix_nanos()) return false;
  *job->mutable_exported() = exported;
  job->set_revision(job->revision() + 1);
  const std::string what = absl::StrCat(
      exported.format() == "peft" ? "PEFT directory " : "Hugging Face directory ", exported.path());
  AddEvent(v1::EVENT_KIND_CHECKPOINT,
           exported.error().empty() ? absl::StrCat(what, " written (", HumanBytes(exported.bytes()), " in ",
                                                   HumanSeconds(exported.seconds()), ")")
                                    : absl::StrCat(what, " could not be written: ", exported.error(),
                                                   ExportAdvice(exported, *job)),
           now, job);
  return true;
}

// Whether an attempt restored a checkpoint of the job that was never reported. If the job has none yet and
// checkpoint.load is set, the restored checkpoint may come from there.
bool IsUnreported(const v1::RestoredCheckpoint& restored, const v1::Job& job) {
  if (AttemptsBefore(job) == 0) return false;
  if (job.checkpoints().empty()) return restored.step() > 0 && job.spec().checkpoint().load().empty();
  return restored.step() > job.checkpoints().rbegin()->step();
}

void RecordUnreported(const v1::RestoredCheckpoint& restored, absl::Time now, v1::Job* job) {
  // Only step and path are known. Counters since this checkpoint can only cover the last attempt, because it
  // was committed in that attempt or before it; an exclusion of the saving attempt itself is kept in
  // checkpoint_attempt_uncounted.
  v1::SavedCheckpoint* found = job->add_checkpoints();
  found->set_step(restored.step());
  found->set_path(restored.path());
  found->set_unix_nanos(absl::ToUnixNanos(now));
  if (job->checkpoints_size() > kMaxKnownCheckpoints) job->mutable_checkpoints()->DeleteSubrange(0, 1);
  // The previous attempt, or an earlier one, committed it, and may have rewound afterwards.
  job->set_attempts_before_checkpoint(AttemptsBefore(*job) - 1);
  const v1::Job::Failure& last = job->failure();
  const bool by_it = last.attempt() == job->attempt() - 1;
  const bool rewound = by_it && last.bad_step().rewind();
  job->set_rewinds_since_checkpoint(std::min(job->rewinds_since_checkpoint(), rewound ? 1 : 0));
  const bool drained =
      !rewound && (job->uncounted_attempt() == job->attempt() - 1 || (by_it && last.drained()));
  job->set_drains_since_checkpoint(std::min(job->drains_since_checkpoint(), drained ? 1 : 0));
  job->set_checkpoint_attempt_uncounted(job->rewinds_since_checkpoint() + job->drains_since_checkpoint() > 0);
}

// Whether the job may have this step. The steps of train.epochs are unknown until a rank has reported them.
bool MayHaveStep(int64_t step, const v1::Job& job) {
  const v1::Train train = FilledSpec(job).train();
  return train.has_epochs() || step <= train.steps();
}

}  // namespace

bool CanHaveSaved(const v1::SavedCheckpoint& saved, const v1::Job& job) {
  return saved.step() >= 1 && MayHaveStep(saved.step(), job);
}

bool CanHaveRestored(const v1::RestoredCheckpoint& restored, const v1::Job& job) {
  return restored.step() >= 0 && MayHaveStep(restored.step(), job);
}

bool TakeSaved(const v1::SavedCheckpoint& saved, absl::Time now, v1::Job* job) {
  if (!saved.format().empty()) return TakeExported(saved, now, job);
  if (HasReported(saved, *job)) return false;
  if (saved.error().empty()) {
    TakeCommitted(saved, now, job);
  } else {
    TakeFailed(saved, now, job);
  }
  return true;
}

bool TakeStart(const v1::RestoredCheckpoint* restored, absl::Time now, v1::Job* job) {
  // A repeated report, or nothing to report: a fresh start without checkpoints.
  const bool heard = job->has_restored() || NewestOfAttempt(*job) != nullptr;
  if (heard || (restored == nullptr && job->checkpoints().empty())) return false;
  std::string words = absl::StrCat("attempt ", job->attempt());
  if (restored == nullptr) {
    const v1::SavedCheckpoint& newest = *job->checkpoints().rbegin();
    absl::StrAppend(&words, " starts at step 1: it found no checkpoint of the job (the newest was step ",
                    newest.step(), ", ", newest.path(), ")");
    job->clear_checkpoints();
  } else {
    v1::RestoredCheckpoint* kept = job->mutable_restored();
    *kept = *restored;
    auto* skipped = kept->mutable_skipped_checkpoints();
    if (skipped->size() > kMaxStartNotes)
      skipped->DeleteSubrange(kMaxStartNotes, skipped->size() - kMaxStartNotes);
    auto* notes = kept->mutable_notes();
    if (notes->size() > kMaxStartNotes) notes->DeleteSubrange(kMaxStartNotes, notes->size() - kMaxStartNotes);
    absl::StrAppend(&words,
                    kept->step() > 0 ? absl::StrCat(" resumes after step ", kept->step(), " (")
                                     : std::string(" starts at step 1 with the parameters of a checkpoint ("),
                    kept->path(), ")");
    if (!skipped->empty()) absl::StrAppend(&words, "; skipped: ", absl::StrJoin(*skipped, "; "));
    // Checkpoints after the restored step belong to a history that this attempt does not continue.
    DropFrom(kept->step() + 1, job);
    if (IsUnreported(*kept, *job)) RecordUnreported(*kept, now, job);
    const bool own = IsOwn(*kept, *job);
    if (!own) job->set_initial_checkpoint_step(kept->step());
    BeginCounting(kept->step(), own, job);
  }
  job->set_revision(job->revision() + 1);
  AddEvent(v1::EVENT_KIND_RESTORED, words, now, job);
  return true;
}

int CountedAttempts(const v1::Job& job) {
  // attempt() counts all launches. Subtracted are refused launches, attempts before the attempt that
  // committed the newest checkpoint, and attempts since then that rewound or were drained.
  return job.attempt() - job.refused_launches() - job.attempts_before_checkpoint() -
         job.rewinds_since_checkpoint() - job.drains_since_checkpoint();
}

void NumberAfter(int attempt, v1::Job* job) {
  attempt = std::min({attempt, job->attempt() + kMaxAttemptsAhead, kMaxAttempt - 1});
  if (attempt <= job->attempt()) return;
  // Numbers that were skipped count as refused launches, so that they do not consume restart.max_attempts.
  job->set_refused_launches(job->refused_launches() + attempt - job->attempt());
  job->set_attempt(attempt);
}

int AttemptsWithoutProgress(const v1::Job& job) {
  const bool saver_counts = !job.checkpoints().empty() && !job.checkpoint_attempt_uncounted();
  return CountedAttempts(job) - (saver_counts ? 1 : 0);
}

void ExcludeAttempt(v1::Job* job) {
  NoteExcluded(job);
  job->set_drains_since_checkpoint(job->drains_since_checkpoint() + 1);
}

void NoteExcluded(v1::Job* job) {
  job->set_uncounted_attempt(job->attempt());
  if (NewestOfAttempt(*job) != nullptr) job->set_checkpoint_attempt_uncounted(true);
}

int64_t AttemptsAllowed(const v1::Job& job) {
  // Attempt numbers include the attempts that do not count, because logs are numbered by them.
  return FilledSpec(job).restart().max_attempts() + job.refused_launches() +
         job.attempts_before_checkpoint() + job.rewinds_since_checkpoint() + job.drains_since_checkpoint();
}

std::string NextStart(const v1::Job& job) {
  if (job.checkpoints().empty()) return "";
  return absl::StrCat(", from the checkpoint of step ", job.checkpoints().rbegin()->step());
}

std::string SavedStateText(const v1::Job& job) {
  if (FilledSpec(job).checkpoint().dir().empty() || !job.has_last_step()) return "";
  const int64_t last = job.last_step().step();
  if (job.checkpoints().empty()) return absl::StrCat("; none of ", last, " steps is saved");
  const int64_t saved = job.checkpoints().rbegin()->step();
  if (saved >= last) return absl::StrCat("; saved after step ", saved);
  return absl::StrCat("; saved after step ", saved, ", without the ", last - saved, " steps after it");
}

std::string WhyGivenUp(const v1::Job& job, const std::string& why) {
  if (FilledSpec(job).checkpoint().dir().empty()) return why;
  const int in_vain = AttemptsWithoutProgress(job);
  if (in_vain < 2) return why;
  const std::string since = job.checkpoints().empty()
                                ? std::string()
                                : absl::StrCat(" after that of step ", job.checkpoints().rbegin()->step());
  return absl::StrCat(in_vain, " attempts in a row committed no checkpoint", since, "; the last one: ", why);
}

}  // namespace fsdpd
