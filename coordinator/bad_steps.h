// What a job knows of steps that were not applied (train.on_nonfinite, train.on_spike): those that were
// skipped, and those that it goes back from, to its newest checkpoint, to pass over the samples from there up
// to the step's. Whether an attempt ended by such a step is the verdict's to say (verdict.h).
//
// The samples that are passed over are ranges of the run's order (SampleRange), stored with the decision to
// go back: whoever launches the next attempt, after whatever became of the coordinator, tells its ranks the
// same. An attempt that starts behind a range is not touched by it.
//
// A job all of whose steps were skipped has learnt nothing, and says so instead of succeeding.
//
// Pure. The revision grows with TakeSkipped, so that watchers see it; GoBack is an edit of a transition,
// which has its own.
#pragma once

#include <absl/time/time.h>

#include <string>

#include "proto/fsdpd/v1/coordinator.pb.h"

namespace fsdpd {

// The newest so many are kept, and as many of those that were skipped are events: a job that skips for a
// month keeps the events of its attempts.
constexpr int kMaxBadSteps = 16;

// Of the job's present attempt, told by its rank 0, and newer than what it told before. False, and nothing
// changes, for a step that was not skipped, or that the loss scale skipped.
bool TakeSkipped(const v1::StepReport& report, absl::Time now, v1::Job* job);

// The job's failure asks to go back, and is of its present attempt.
bool WantsToGoBack(const v1::Job& job);

// Why the job may not; empty where it may. REQUIRES: WantsToGoBack().
std::string WhyNotBack(const v1::Job& job);

// What the next attempt passes over beyond job.passed_over(): from where it starts, as far as is known, to
// the step's last sample. REQUIRES: WantsToGoBack().
v1::SampleRange RangeToPassOver(const v1::Job& job);

// REQUIRES: WantsToGoBack(), and WhyNotBack() is empty.
void GoBack(v1::Job* job);

// Whether any step counted (Job.skipped_through). Agents say so with the end of rank 0, as reports of steps
// are lost while the coordinator is away; what nobody knows counts.
void BeginCounting(int64_t after_step, bool own, v1::Job* job);  // What the attempt goes on from, and whose.
void TakeCounted(const v1::StepReport& report, v1::Job* job);    // Of rank 0.
void TakeCounted(const v1::RankExit& exit, v1::Job* job);        // Of rank 0.

// All steps of the job are done, and none was learnt from.
bool NothingCounted(const v1::Job& job);
std::string WhyNothingCounted(const v1::Job& job);

}  // namespace fsdpd
