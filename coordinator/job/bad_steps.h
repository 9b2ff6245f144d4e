// Record of a job's steps that were not applied (train.on_nonfinite, train.on_spike): skipped steps, and
// steps that the job rewinds from. A rewind resumes from the newest checkpoint and skips the samples from
// there up to the bad step. The verdict (verdict.h) decides whether an attempt ended because of such a step.
//
// Skipped samples are ranges of the run's order (SampleRange), stored with the decision to rewind. The next
// attempt gets the same ranges even if the coordinator restarts in between. An attempt that starts after a
// range is not affected by it.
//
// A job that skipped all of its steps has trained on nothing; it fails instead of succeeding.
//
// Pure. TakeSkipped increments the revision, so that watchers see the change; Rewind is an edit of a
// transition, which increments it itself.
#pragma once

#include <absl/time/time.h>

#include <string>

#include "proto/fsdpd/v1/coordinator.pb.h"

namespace fsdpd {

// Newest bad steps that are retained, and the limit of events for skipped steps: a job that skips steps for a
// month keeps the events of its attempts.
constexpr int kMaxBadSteps = 16;

// Records a report of rank 0 of the job's current attempt, newer than its last one. Returns false, and
// changes nothing, for a step that was not skipped, or that the loss scaler skipped.
bool TakeSkipped(const v1::StepReport& report, absl::Time now, v1::Job* job);

// Whether the job's failure requests a rewind and belongs to its current attempt.
bool WantsRewind(const v1::Job& job);

// Why the job may not rewind; empty if it may. REQUIRES: WantsRewind().
std::string WhyNoRewind(const v1::Job& job);

// Samples that the next attempt skips in addition to job.skipped_samples(): from its start, as far as that is
// known, to the last sample of the bad step. REQUIRES: WantsRewind().
v1::SampleRange RangeToSkip(const v1::Job& job);

// REQUIRES: WantsRewind(), and WhyNoRewind() is empty.
void Rewind(v1::Job* job);

// Whether any step was applied (Job.skipped_through). Agents repeat this with the exit of rank 0, because
// step reports are lost while the coordinator is down. A step of unknown outcome counts as applied.
void BeginCounting(int64_t after_step, bool own, v1::Job* job);  // Start of the attempt.
void TakeCounted(const v1::StepReport& report, v1::Job* job);    // From rank 0.
void TakeCounted(const v1::RankExit& exit, v1::Job* job);        // From rank 0.

// All steps of the job are done, and none was applied.
bool NothingCounted(const v1::Job& job);
std::string WhyNothingCounted(const v1::Job& job);

}  // namespace fsdpd
