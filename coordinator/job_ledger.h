// Where a job's time goes: each second from its admission to its end is of one cause, so that all causes
// together are that time. Time passes to what goes on (`cause`); what is told later only moves it: a report
// of a step takes the step's time out of what was not known to be anything yet. So nothing is counted twice,
// whatever is told late, again or never.
//
// Pure: times are LedgerDate's, and one that is earlier than the last adds nothing. It is kept in the job's
// own record and written with it.
#pragma once

#include <absl/strings/string_view.h>
#include <absl/time/time.h>

#include <vector>

#include "base/clock.h"
#include "proto/fsdpd/v1/coordinator.pb.h"

namespace fsdpd {

// The date in one life of a coordinator as ledgers count it: what it was at the beginning, and the time that
// has passed since, whatever is set meanwhile. Only from one life to the next is it the date that counts.
class LedgerDate {
 public:
  explicit LedgerDate(const Clock* clock) : clock_(clock), behind_(clock->Wall() - clock->Now()) {}
  absl::Time Now() const { return Of(clock_->Now()); }
  absl::Time Of(absl::Time moment) const { return moment + behind_; }  // That the clock's Now() gave.

 private:
  const Clock* clock_;
  absl::Duration behind_;
};

// A cause with its name in metrics, "queue", and its seconds.
struct LedgerShare {
  absl::string_view name;
  double seconds;
};
std::vector<LedgerShare> SharesOf(const v1::Job::Ledger& ledger);  // All causes, those of 0 s too.
double SecondsOf(const v1::Job::Ledger& ledger);                   // All together.

// The job was admitted just now: its time begins.
void BeginTime(absl::Time now, v1::Job* job);
// Of another life, which may have had a later date: what comes from now on counts.
void GoOnWithTime(absl::Time now, v1::Job* job);
// Time has passed until `now`. No effect on a job that has ended. Also before the job is shown.
void PassTime(absl::Time now, v1::Job* job);
// The job's state is about to become `next`. `retried`: since its attempt failed.
void PassTime(absl::Time now, v1::JobState next, bool retried, v1::Job* job);
// The job ended then: time until that, and none after it.
void EndTime(absl::Time end, v1::Job* job);

// A step was reported. `before`: the report before it of this attempt; nothing where it is the first. Steps
// in between that nobody reported are taken to have been like this one.
void MoveStep(const v1::StepReport& before, const v1::StepReport& step, absl::Time now, v1::Job* job);
void MoveSave(const v1::SavedCheckpoint& saved, absl::Time now, v1::Job* job);
void MoveLoad(const v1::RestoredCheckpoint& restored, absl::Time now, v1::Job* job);
void MoveHang(const v1::Job::Hang& hang, v1::Job* job);

}  // namespace fsdpd
