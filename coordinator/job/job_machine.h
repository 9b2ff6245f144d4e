// State machine of a job as one table: (state, event) -> state. Every state change goes through Apply():
// transitions outside the table are impossible, and each change leaves an event with its reason.
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
// Pure: no clock, no lock, no store. The caller persists the job before it acts on the new state. Errors:
// FAILED_PRECONDITION if the state does not allow the event, or for a launch after attempt kMaxAttempt; the
// job is then unchanged.
#pragma once

#include <absl/status/statusor.h>
#include <absl/strings/string_view.h>
#include <absl/time/time.h>

#include <string>
#include <vector>

#include "proto/fsdpd/v1/coordinator.pb.h"

namespace fsdpd {

enum class JobEvent {
  kLaunch,      // Placed: ranks are being launched. Apply() increments the attempt.
  kReady,       // All ranks reported ready.
  kFinish,      // All ranks exited successfully.
  kFail,        // A rank or its node failed; the others must stop.
  kRetry,       // The attempt is gone, and another one is allowed.
  kGiveUp,      // The attempt is gone and no other is allowed, or none is possible.
  kCancel,      // A user requested the end.
  kRanksGone,   // All ranks of a cancelled or paused job are gone.
  kNote,        // Same state, new reason.
  kPause,       // A user, drain or preemption takes the slots back for now.
  kResume,      // The paused job is queued again.
  kUserRetry,   // A user retries a failed or cancelled job.
  kPreflight,   // Placed, on nodes that are measured first.
  kUnplace,     // Those nodes were rejected after all.
  kCancelRest,  // As kCancel, if a node with ranks of the ended attempt is back.
};
constexpr int kJobEvents = 15;

// Events retained per job: the first one and the newest; events in between are dropped.
constexpr int kMaxJobEvents = 64;

absl::StatusOr<v1::JobState> NextState(v1::JobState state, JobEvent event);

// Sets state, reason, revision, events and times (`now`: the date). A launch also starts attempt + 1. A
// retry, a pause and a launch clear what the previous attempt reached (steps, mallocs, peak); a launch also
// clears what it started from. The caller sets placements. `ledger_now`: the time of the job's ledger
// (LedgerDate); equal to `now` in the second overload.
absl::Status Apply(JobEvent event, absl::string_view reason, absl::Time now, absl::Time ledger_now,
                   v1::Job* job);
absl::Status Apply(JobEvent event, absl::string_view reason, absl::Time now, v1::Job* job);

// Appends a numbered event to the job. Does not change the revision.
void AddEvent(v1::EventKind kind, absl::string_view message, absl::Time now, v1::Job* job);
// Drops events in the middle if there are more than kMaxJobEvents.
void BoundEvents(v1::Job* job);

bool IsEnded(v1::JobState state);
bool HasAttempt(v1::JobState state);        // Some of its ranks may run, or are about to.
std::vector<v1::JobState> AllJobStates();   // Without UNSPECIFIED.
std::vector<v1::JobState> LiveJobStates();  // States that have not ended.
std::string ShortName(v1::JobState state);  // "RUNNING"
const char* NameOf(JobEvent event);
v1::EventKind KindOf(JobEvent event);

// Applies a report of rank 0: newest step, first loss, steady mallocs, peak. Does not change the revision.
// Returns false, without a change, for a report that is not newer than the last one.
bool TakeStep(const v1::StepReport& step, v1::Job* job);

}  // namespace fsdpd
