// The states of a job as one table: (state, event) -> state. Every change of a job's state goes through
// Apply(), so what is not in the table cannot happen, and each change leaves an event that says why.
//
//   QUEUED -launch-> STARTING -ready-> RUNNING -finish-> SUCCEEDED
//   QUEUED -preflight-> PREFLIGHT -launch-> STARTING
//                       PREFLIGHT -unplace-> QUEUED
//   STARTING -finish-> SUCCEEDED
//   STARTING, RUNNING -fail-> STOPPING -retry-> QUEUED
//                             STOPPING -give up-> FAILED
//   QUEUED, PREFLIGHT -cancel-> CANCELLED
//   QUEUED -give up-> FAILED
//   STARTING, RUNNING, STOPPING, PAUSING -cancel-> CANCELLING -gone-> CANCELLED
//   QUEUED, PREFLIGHT -pause-> PAUSED -resume-> QUEUED
//   STARTING, RUNNING, STOPPING -pause-> PAUSING -gone-> PAUSED
//                                        PAUSING -finish-> SUCCEEDED
//   PAUSED -cancel-> CANCELLED
//   QUEUED, PREFLIGHT, PAUSED -cancel the rest-> CANCELLING
//   FAILED, CANCELLED -again-> QUEUED
//
// Pure: no clock, no lock, no store. The caller persists the job before it acts on the new state.
// Errors: FAILED_PRECONDITION when the state does not allow the event, or for a launch after attempt
// kMaxAttempt; the job is unchanged.
#pragma once

#include <absl/status/statusor.h>
#include <absl/strings/string_view.h>
#include <absl/time/time.h>

#include <string>
#include <vector>

#include "proto/fsdpd/v1/coordinator.pb.h"

namespace fsdpd {

enum class JobEvent {
  kLaunch,      // Placed: ranks are being launched. Apply() counts the attempt.
  kReady,       // All ranks have reported in.
  kFinish,      // All ranks ended well.
  kFail,        // A rank or its node failed; the others are to be stopped.
  kRetry,       // The attempt is gone, another one is allowed.
  kGiveUp,      // The attempt is gone, no other one is allowed; or none is possible.
  kCancel,      // A person asked for the end.
  kGone,        // Every rank of a job that was cancelled or paused is gone.
  kNote,        // Same state, another reason.
  kPause,       // A person wants its slots back, and the job later.
  kResume,      // A person wants a paused job to go on.
  kAgain,       // A person wants a job that has failed, or was cancelled, to go on.
  kPreflight,   // Placed, on nodes that are measured first.
  kUnplace,     // Those nodes are not for it after all.
  kCancelRest,  // As kCancel, of one whose last attempt was over without a node that is back with ranks.
};
constexpr int kJobEvents = 15;

// Events kept in a job; the first one and the newest stay, the middle goes.
constexpr int kMaxJobEvents = 64;

absl::StatusOr<v1::JobState> NextState(v1::JobState state, JobEvent event);

// Sets state, reason, revision, events and times (`now`: the date). A launch also starts attempt + 1; a
// retry, a pause and a launch clear what the attempt before had reached (steps, mallocs, peak), and a launch
// what it started from. Placements are the caller's to set. `ledger_now`: as the job's ledger counts
// (LedgerDate); the date where nobody sets it.
absl::Status Apply(JobEvent event, absl::string_view reason, absl::Time now, absl::Time ledger_now,
                   v1::Job* job);
absl::Status Apply(JobEvent event, absl::string_view reason, absl::Time now, v1::Job* job);

// Among the job's events, numbered. No revision.
void AddEvent(v1::EventKind kind, absl::string_view message, absl::Time now, v1::Job* job);
// Drops the middle where there are more than kMaxJobEvents.
void BoundEvents(v1::Job* job);

bool IsEnded(v1::JobState state);
bool HasAttempt(v1::JobState state);        // Some of its ranks may be there, or are about to be.
std::vector<v1::JobState> AllJobStates();   // Without UNSPECIFIED.
std::vector<v1::JobState> LiveJobStates();  // Those that have not ended.
std::string ShortName(v1::JobState state);  // "RUNNING"
const char* NameOf(JobEvent event);
v1::EventKind KindOf(JobEvent event);

// Takes rank 0's report into the job: newest step, first loss, steady mallocs, peak. No revision. False (and
// no change) for a report that is not newer than the last one.
bool TakeStep(const v1::StepReport& step, v1::Job* job);

}  // namespace fsdpd
