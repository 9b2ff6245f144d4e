// Where a job's time goes: each second from its admission to its end is of one cause, so that all causes
// together are that time. Time passes to what goes on (`cause`); what is told later only moves it: a report
// of a step takes the step's time out of what was not known to be anything yet. So nothing is counted twice,
// whatever is told late, again or never.
//
// Pure: times are the coordinator's dates, and one that was set back adds nothing. It is kept in the job's
// own record and written with it.
#pragma once

#include <absl/strings/string_view.h>
#include <absl/time/time.h>

#include <vector>

#include "proto/fsdpd/v1/coordinator.pb.h"

namespace fsdpd {

// A cause with its name in metrics, "queue", and its seconds.
struct LedgerShare {
  absl::string_view name;
  double seconds;
};
std::vector<LedgerShare> SharesOf(const v1::Job::Ledger& ledger);  // All causes, those of 0 s too.
double SecondsOf(const v1::Job::Ledger& ledger);                   // All together.

// Time has passed until `now`. No effect on a job that has ended. Also before the job is shown.
void PassTime(absl::Time now, v1::Job* job);
// The job's state is about to become `next`. `retried`: since its attempt failed.
void PassTime(absl::Time now, v1::JobState next, bool retried, v1::Job* job);
// `job->end_unix_nanos` is set: time until then, and none after it.
void EndTime(v1::Job* job);

// A step was reported. `before`: the report before it of this attempt; nothing where it is the first. Steps
// in between that nobody reported are taken to have been like this one.
void MoveStep(const v1::StepReport& before, const v1::StepReport& step, absl::Time now, v1::Job* job);
void MoveSave(const v1::SavedCheckpoint& saved, absl::Time now, v1::Job* job);
void MoveLoad(const v1::RestoredCheckpoint& restored, absl::Time now, v1::Job* job);
void MoveHang(const v1::Job::Hang& hang, v1::Job* job);

}  // namespace fsdpd
