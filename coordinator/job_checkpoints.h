// What a job knows of its checkpoints: which it may go on from, what its newest attempt started from, and how
// many attempts count since the newest one. Policy is the verdict's (verdict.h).
//
// A commit is an event only where it is the first, or the first after one that failed; a failure only where
// it is the first of a row: a job that saves for a month keeps the events of its attempts. None of them
// changes the job's reason, which says why it is in its state.
//
// Pure. Agents say everything twice now and then: a Take returns false, and changes nothing, for what the job
// has heard already. Otherwise the revision grows, so that watchers see it.
#pragma once

#include <absl/time/time.h>

#include <string>

#include "proto/fsdpd/v1/coordinator.pb.h"

namespace fsdpd {

// False for a step outside 1 .. train.steps, which only a node that invents checkpoints reports. TakeSaved()
// requires true.
bool CanHaveSaved(const v1::SavedCheckpoint& saved, const v1::Job& job);
// Also true for step 0: only parameters were restored. TakeStart() requires true.
bool CanHaveRestored(const v1::RestoredCheckpoint& restored, const v1::Job& job);

// Of the job's present attempt, told by its rank 0: a checkpoint was committed, or could not be written; or
// what checkpoint.export made of the last one, or could not.
bool TakeSaved(const v1::SavedCheckpoint& saved, absl::Time now, v1::Job* job);

// Rank 0 of the present attempt is ready: with what it started from, or null where it starts fresh, which
// with a checkpoint known only ranks under an agent of an older release do. A checkpoint that is newer than
// those known was committed by a rank that died before it could say so: it is known from now on, and attempts
// count from it.
bool TakeStart(const v1::RestoredCheckpoint* restored, absl::Time now, v1::Job* job);

// Attempts so far that count: since the newest checkpoint, the one that committed it among them, without
// those that a stopping agent refused, those whose node left in order, and those that went back to pass over
// samples (bad_steps.h).
int CountedAttempts(const v1::Job& job);

// Of those, how many have committed none.
int AttemptsInVain(const v1::Job& job);

// The present attempt does not count, as its node left in order or as the job was paused: one more of
// drains_since_checkpoint.
void ExcuseAttempt(v1::Job* job);
// That it does not count, where something else has counted it: of an attempt that went back (GoBack() of
// bad_steps.h), or of all that were before a RetryJob.
void NoteExcused(v1::Job* job);

// Of an attempt that may be followed by another: where that begins, as far as is known. Begins with a comma,
// or is empty.
std::string NextStart(const v1::Job& job);
// `why` the last attempt failed, with how many before it came to no checkpoint either.
std::string WhyGivenUp(const v1::Job& job, const std::string& why);
// Of what a cancelled job has trained: how much is saved. Begins with a semicolon, or is empty.
std::string WhatIsSaved(const v1::Job& job);

// The number of the last attempt that the job may have, as things stand.
int64_t AttemptsAllowed(const v1::Job& job);

// The job has had attempts up to this one, of which nothing was known: the next has the number after it, and
// none of them counts against restart.max_attempts.
void NumberAfter(int attempt, v1::Job* job);

}  // namespace fsdpd
