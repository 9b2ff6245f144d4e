// Checkpoint record of a job: which checkpoints it may resume from, what its newest attempt started from, and
// how many attempts count since the newest checkpoint. The verdict (verdict.h) decides by it.
//
// A commit is an event only if it is the first, or the first after a failed save; a failed save only if it is
// the first in a row. The number of events of a job is bounded, so a month of saves does not displace the
// events of its attempts. These events do not change the job's reason, which explains its state.
//
// Pure. Agents sometimes repeat reports: a Take function returns false, and changes nothing, for a known
// report. Otherwise the revision increases, so that watchers see the change.
#pragma once

#include <absl/time/time.h>

#include <string>

#include "proto/fsdpd/v1/coordinator.pb.h"

namespace fsdpd {

// False for a step outside 1 .. train.steps, which only a node that forges checkpoints reports. TakeSaved()
// requires true.
bool CanHaveSaved(const v1::SavedCheckpoint& saved, const v1::Job& job);
// Also true for step 0: only parameters were restored. TakeStart() requires true.
bool CanHaveRestored(const v1::RestoredCheckpoint& restored, const v1::Job& job);

// A report of rank 0 of the job's current attempt: a checkpoint was committed or its save failed; or the
// result of checkpoint.export for the last checkpoint.
bool TakeSaved(const v1::SavedCheckpoint& saved, absl::Time now, v1::Job* job);

// Rank 0 of the current attempt is ready: `restored` is the checkpoint that it started from, or null for a
// fresh start. With a known checkpoint, only ranks under an agent of an older release start fresh. A
// checkpoint newer than the known ones was committed by a rank that died before it could report it: it is
// known from now on, and attempts count from it.
bool TakeStart(const v1::RestoredCheckpoint* restored, absl::Time now, v1::Job* job);

// Attempts that count against restart.max_attempts so far: since the newest checkpoint, including the attempt
// that committed it. Excluded are attempts that a stopping agent refused, whose node shut down gracefully, or
// that rewound to skip samples (bad_steps.h).
int CountedAttempts(const v1::Job& job);

// The number of those that committed no checkpoint.
int AttemptsWithoutProgress(const v1::Job& job);

// Excludes the current attempt because its node shut down gracefully or the job was paused: increments
// drains_since_checkpoint.
void ExcludeAttempt(v1::Job* job);
// Excludes an attempt that was already counted: one that rewound (Rewind() of bad_steps.h), or all attempts
// before a RetryJob.
void NoteExcluded(v1::Job* job);

// Where the attempt after a failed one starts, as far as that is known. Starts with a comma, or is empty.
std::string NextStart(const v1::Job& job);
// `why` the last attempt failed, with the number of attempts before it that committed no checkpoint either.
std::string WhyGivenUp(const v1::Job& job, const std::string& why);
// How much of a cancelled job's training is saved. Starts with a semicolon, or is empty.
std::string SavedStateText(const v1::Job& job);

// The number of the last attempt that the job may have, in its current state.
int64_t AttemptsAllowed(const v1::Job& job);

// Accounts for attempts up to `attempt` that were not in the record: the next attempt gets the number after
// it, and none of them counts against restart.max_attempts.
void NumberAfter(int attempt, v1::Job* job);

}  // namespace fsdpd
