// Transition table of job states, and its single transition function Apply().
#include "coordinator/job/job_machine.h"

#include <absl/strings/str_cat.h>

#include <algorithm>
#include <cmath>

#include "coordinator/job/attempt_ref.h"
#include "coordinator/job/job_ledger.h"

namespace fsdpd {
namespace {

using v1::JobState;

struct Transition {
  JobState from;
  JobEvent event;
  JobState to;
};

constexpr Transition kTransitions[] = {
    {v1::JOB_STATE_QUEUED, JobEvent::kLaunch, v1::JOB_STATE_STARTING},
    {v1::JOB_STATE_QUEUED, JobEvent::kCancel, v1::JOB_STATE_CANCELLED},
    {v1::JOB_STATE_QUEUED, JobEvent::kCancelRest, v1::JOB_STATE_CANCELLING},
    {v1::JOB_STATE_QUEUED, JobEvent::kGiveUp, v1::JOB_STATE_FAILED},
    {v1::JOB_STATE_QUEUED, JobEvent::kPause, v1::JOB_STATE_PAUSED},
    {v1::JOB_STATE_QUEUED, JobEvent::kNote, v1::JOB_STATE_QUEUED},
    {v1::JOB_STATE_QUEUED, JobEvent::kPreflight, v1::JOB_STATE_PREFLIGHT},

    // No rank runs yet; the preflights on its nodes finish, whatever happens to the job.
    {v1::JOB_STATE_PREFLIGHT, JobEvent::kLaunch, v1::JOB_STATE_STARTING},
    {v1::JOB_STATE_PREFLIGHT, JobEvent::kUnplace, v1::JOB_STATE_QUEUED},
    {v1::JOB_STATE_PREFLIGHT, JobEvent::kCancel, v1::JOB_STATE_CANCELLED},
    {v1::JOB_STATE_PREFLIGHT, JobEvent::kCancelRest, v1::JOB_STATE_CANCELLING},
    {v1::JOB_STATE_PREFLIGHT, JobEvent::kPause, v1::JOB_STATE_PAUSED},
    {v1::JOB_STATE_PREFLIGHT, JobEvent::kNote, v1::JOB_STATE_PREFLIGHT},

    {v1::JOB_STATE_STARTING, JobEvent::kReady, v1::JOB_STATE_RUNNING},
    // A job of a few steps may end before its last "ready" arrives.
    {v1::JOB_STATE_STARTING, JobEvent::kFinish, v1::JOB_STATE_SUCCEEDED},
    {v1::JOB_STATE_STARTING, JobEvent::kFail, v1::JOB_STATE_STOPPING},
    {v1::JOB_STATE_STARTING, JobEvent::kCancel, v1::JOB_STATE_CANCELLING},
    {v1::JOB_STATE_STARTING, JobEvent::kPause, v1::JOB_STATE_PAUSING},
    {v1::JOB_STATE_STARTING, JobEvent::kNote, v1::JOB_STATE_STARTING},

    {v1::JOB_STATE_RUNNING, JobEvent::kFinish, v1::JOB_STATE_SUCCEEDED},
    {v1::JOB_STATE_RUNNING, JobEvent::kFail, v1::JOB_STATE_STOPPING},
    {v1::JOB_STATE_RUNNING, JobEvent::kCancel, v1::JOB_STATE_CANCELLING},
    {v1::JOB_STATE_RUNNING, JobEvent::kPause, v1::JOB_STATE_PAUSING},
    {v1::JOB_STATE_RUNNING, JobEvent::kNote, v1::JOB_STATE_RUNNING},

    {v1::JOB_STATE_STOPPING, JobEvent::kRetry, v1::JOB_STATE_QUEUED},
    {v1::JOB_STATE_STOPPING, JobEvent::kGiveUp, v1::JOB_STATE_FAILED},
    {v1::JOB_STATE_STOPPING, JobEvent::kCancel, v1::JOB_STATE_CANCELLING},
    {v1::JOB_STATE_STOPPING, JobEvent::kPause, v1::JOB_STATE_PAUSING},
    {v1::JOB_STATE_STOPPING, JobEvent::kNote, v1::JOB_STATE_STOPPING},

    {v1::JOB_STATE_CANCELLING, JobEvent::kRanksGone, v1::JOB_STATE_CANCELLED},
    {v1::JOB_STATE_CANCELLING, JobEvent::kNote, v1::JOB_STATE_CANCELLING},

    {v1::JOB_STATE_PAUSING, JobEvent::kRanksGone, v1::JOB_STATE_PAUSED},
    // It completed its last step before it could exit.
    {v1::JOB_STATE_PAUSING, JobEvent::kFinish, v1::JOB_STATE_SUCCEEDED},
    {v1::JOB_STATE_PAUSING, JobEvent::kCancel, v1::JOB_STATE_CANCELLING},
    {v1::JOB_STATE_PAUSING, JobEvent::kNote, v1::JOB_STATE_PAUSING},

    {v1::JOB_STATE_PAUSED, JobEvent::kResume, v1::JOB_STATE_QUEUED},
    {v1::JOB_STATE_PAUSED, JobEvent::kCancel, v1::JOB_STATE_CANCELLED},
    {v1::JOB_STATE_PAUSED, JobEvent::kCancelRest, v1::JOB_STATE_CANCELLING},
    {v1::JOB_STATE_PAUSED, JobEvent::kNote, v1::JOB_STATE_PAUSED},

    {v1::JOB_STATE_FAILED, JobEvent::kUserRetry, v1::JOB_STATE_QUEUED},
    {v1::JOB_STATE_CANCELLED, JobEvent::kUserRetry, v1::JOB_STATE_QUEUED},
};

// Clears steps, rank speed and rank positions, which belong to an attempt. The first loss remains if the next
// attempt may resume from a checkpoint: its losses are compared with it.
void ForgetSteps(v1::Job* job) {
  if (job->has_last_step()) *job->mutable_previous_last_step() = job->last_step();
  job->clear_last_step();
  if (job->checkpoints().empty()) job->clear_first_loss();
  job->clear_steady_device_mallocs();
  job->clear_peak_bytes();
  job->clear_positions();
  job->clear_slowest_ranks();
}

void StartAttempt(int64_t unix_nanos, v1::Job* job) {
  job->set_attempt(job->attempt() + 1);
  job->set_start_unix_nanos(unix_nanos);
  job->clear_restored();
  job->clear_failed_checkpoint();
  ForgetSteps(job);
}

// A NaN is never the best.
void TakeValidation(const v1::StepReport& step, v1::Job* job) {
  v1::Job::Validation* const last = job->mutable_last_validation();
  last->set_step(step.step());
  last->set_loss(step.evaluation().loss());
  last->set_tokens(step.evaluation().tokens());
  const bool best = !job->has_best_validation() || !(job->best_validation().loss() <= last->loss());
  if (best && !std::isnan(last->loss())) *job->mutable_best_validation() = *last;
}

}  // namespace

absl::StatusOr<JobState> NextState(JobState state, JobEvent event) {
  for (const Transition& t : kTransitions) {
    if (t.from == state && t.event == event) return t.to;
  }
  return absl::FailedPreconditionError(
      absl::StrCat("a job in state ", ShortName(state), " does not allow '", NameOf(event), "'"));
}

absl::Status Apply(JobEvent event, absl::string_view reason, absl::Time now, v1::Job* job) {
  return Apply(event, reason, now, now, job);
}

absl::Status Apply(JobEvent event, absl::string_view reason, absl::Time now, absl::Time ledger_now,
                   v1::Job* job) {
  const absl::StatusOr<JobState> next = NextState(job->state(), event);
  if (!next.ok()) return next.status();
  if (event == JobEvent::kLaunch && job->attempt() >= kMaxAttempt)
    return absl::FailedPreconditionError(absl::StrCat("a job has at most ", kMaxAttempt, " attempts"));
  const int64_t unix_nanos = absl::ToUnixNanos(now);
  AdvanceLedger(ledger_now, *next, event == JobEvent::kRetry, job);
  job->set_state(*next);
  job->set_reason(std::string(reason));
  job->set_revision(job->revision() + 1);
  if (event != JobEvent::kNote) job->clear_stalled_since_unix_nanos();
  if (event == JobEvent::kLaunch) StartAttempt(unix_nanos, job);
  if (event == JobEvent::kReady) job->clear_deleted_hosts();  // The attempt holds the lock of the directory.
  // After a pause or before a retry, the steps of the last attempt must not be shown as current.
  if (event == JobEvent::kRetry || event == JobEvent::kUserRetry || *next == v1::JOB_STATE_PAUSED)
    ForgetSteps(job);
  if (*next != v1::JOB_STATE_PAUSING && *next != v1::JOB_STATE_PAUSED) job->clear_pause();
  if (event == JobEvent::kUserRetry) job->clear_end_unix_nanos();
  if (*next != v1::JOB_STATE_PREFLIGHT) job->clear_reserved_nodes();
  // The job no longer occupies backfilled slots.
  const bool has_slots = *next == v1::JOB_STATE_PREFLIGHT || HasAttempt(*next);
  if (!has_slots || event == JobEvent::kCancelRest) job->clear_backfilled();
  if (IsEnded(*next)) job->set_end_unix_nanos(unix_nanos);
  AddEvent(KindOf(event), reason, now, job);
  return absl::OkStatus();
}

void AddEvent(v1::EventKind kind, absl::string_view message, absl::Time now, v1::Job* job) {
  v1::Job::Event* event = job->add_events();
  job->set_event_count(job->event_count() + 1);
  event->set_kind(kind);
  event->set_number(job->event_count());
  event->set_attempt(job->attempt());
  event->set_unix_nanos(absl::ToUnixNanos(now));
  event->set_state(job->state());
  event->set_message(std::string(message));
  BoundEvents(job);
}

void BoundEvents(v1::Job* job) {
  auto* events = job->mutable_events();
  if (events->size() > kMaxJobEvents) events->DeleteSubrange(1, events->size() - kMaxJobEvents);
}

bool IsEnded(JobState state) {
  return state == v1::JOB_STATE_SUCCEEDED || state == v1::JOB_STATE_FAILED ||
         state == v1::JOB_STATE_CANCELLED;
}

bool HasAttempt(JobState state) {
  return !IsEnded(state) && state != v1::JOB_STATE_QUEUED && state != v1::JOB_STATE_PREFLIGHT &&
         state != v1::JOB_STATE_PAUSED;
}

std::vector<JobState> AllJobStates() {
  return {v1::JOB_STATE_QUEUED,    v1::JOB_STATE_STARTING, v1::JOB_STATE_RUNNING,   v1::JOB_STATE_CANCELLING,
          v1::JOB_STATE_SUCCEEDED, v1::JOB_STATE_FAILED,   v1::JOB_STATE_CANCELLED, v1::JOB_STATE_STOPPING,
          v1::JOB_STATE_PAUSING,   v1::JOB_STATE_PAUSED,   v1::JOB_STATE_PREFLIGHT};
}

std::vector<JobState> LiveJobStates() {
  std::vector<JobState> live = AllJobStates();
  live.erase(std::remove_if(live.begin(), live.end(), IsEnded), live.end());
  return live;
}

std::string ShortName(JobState state) {
  constexpr size_t kPrefix = sizeof("JOB_STATE_") - 1;
  const std::string name = v1::JobState_Name(state);
  return name.size() > kPrefix ? name.substr(kPrefix) : absl::StrCat("#", static_cast<int>(state));
}

const char* NameOf(JobEvent event) {
  switch (event) {
    case JobEvent::kLaunch:
      return "launch";
    case JobEvent::kReady:
      return "ready";
    case JobEvent::kFinish:
      return "finish";
    case JobEvent::kFail:
      return "fail";
    case JobEvent::kRetry:
      return "retry";
    case JobEvent::kGiveUp:
      return "give up";
    case JobEvent::kCancel:
      return "cancel";
    case JobEvent::kRanksGone:
      return "gone";
    case JobEvent::kNote:
      return "note";
    case JobEvent::kPause:
      return "pause";
    case JobEvent::kResume:
      return "resume";
    case JobEvent::kUserRetry:
      return "again";
    case JobEvent::kPreflight:
      return "preflight";
    case JobEvent::kUnplace:
      return "unplace";
    case JobEvent::kCancelRest:
      return "cancel the rest";
  }
  return "?";
}

v1::EventKind KindOf(JobEvent event) {
  switch (event) {
    case JobEvent::kLaunch:
      return v1::EVENT_KIND_LAUNCHED;
    case JobEvent::kReady:
      return v1::EVENT_KIND_READY;
    case JobEvent::kFinish:
      return v1::EVENT_KIND_SUCCEEDED;
    case JobEvent::kFail:
      return v1::EVENT_KIND_ATTEMPT_FAILED;
    case JobEvent::kRetry:
      return v1::EVENT_KIND_RETRIED;
    case JobEvent::kGiveUp:
      return v1::EVENT_KIND_FAILED;
    case JobEvent::kCancel:
    case JobEvent::kCancelRest:
      return v1::EVENT_KIND_CANCELLED;
    case JobEvent::kRanksGone:
      return v1::EVENT_KIND_RANKS_EXITED;
    case JobEvent::kNote:
      return v1::EVENT_KIND_NOTE;
    case JobEvent::kPause:
      return v1::EVENT_KIND_PAUSED;
    case JobEvent::kResume:
      return v1::EVENT_KIND_RESUMED;
    case JobEvent::kUserRetry:
      return v1::EVENT_KIND_RETRIED_BY_USER;
    case JobEvent::kPreflight:
      return v1::EVENT_KIND_PREFLIGHT;
    case JobEvent::kUnplace:
      return v1::EVENT_KIND_RESERVATION_RELEASED;
  }
  return v1::EVENT_KIND_UNSPECIFIED;
}

bool TakeStep(const v1::StepReport& step, v1::Job* job) {
  const bool first = !job->has_last_step();
  if (!first && step.step() <= job->last_step().step()) return false;
  const int64_t begun_after = job->restored().step();
  if (first && (begun_after == 0 || job->first_loss() == 0)) job->set_first_loss(step.loss());
  // Mallocs are steady from the second step on: the first step fills the allocator's cache. The count at that
  // step is taken from the last report, so that it survives a restart of the coordinator with the job.
  const bool steady_before = !first && job->last_step().step() >= begun_after + 2;
  const int64_t mallocs_at_step_2 =
      steady_before ? job->last_step().memory().device_mallocs() - job->steady_device_mallocs()
                    : step.memory().device_mallocs();
  job->set_steady_device_mallocs(step.memory().device_mallocs() - mallocs_at_step_2);
  job->set_peak_bytes(std::max(job->peak_bytes(), step.memory().peak_bytes()));
  *job->mutable_last_step() = step;
  if (step.has_evaluation()) TakeValidation(step, job);
  return true;
}

}  // namespace fsdpd
