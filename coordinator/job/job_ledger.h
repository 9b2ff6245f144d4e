// Goodput ledger: each second from a job's admission to its end has exactly one cause, so the causes add up
// to the elapsed time. Elapsed time goes to the current `cause`. Later reports only move time: a step report
// moves the step's time out of a provisional cause. Late, repeated or missing reports therefore never count
// time twice.
//
// Pure: callers pass times of LedgerDate; a time before the last one adds nothing. The ledger is part of the
// job's record and stored with it.
#pragma once

#include <absl/strings/string_view.h>
#include <absl/time/time.h>

#include <vector>

#include "base/clock.h"
#include "proto/fsdpd/v1/coordinator.pb.h"

namespace fsdpd {

// Date for ledgers: the wall-clock date when the coordinator started plus the monotonic time since. Setting
// the system time affects it only at the next start.
class LedgerDate {
 public:
  explicit LedgerDate(const Clock* clock) : clock_(clock), behind_(clock->Wall() - clock->Now()) {}
  absl::Time Now() const { return Of(clock_->Now()); }
  absl::Time Of(absl::Time moment) const { return moment + behind_; }  // A value of the clock's Now().

 private:
  const Clock* clock_;
  absl::Duration behind_;
};

// A cause by its name in metrics, such as "queue", with its seconds.
struct LedgerShare {
  absl::string_view name;
  double seconds;
};
std::vector<LedgerShare> SharesOf(const v1::Job::Ledger& ledger);  // All causes, including 0 s.
double SecondsOf(const v1::Job::Ledger& ledger);                   // Sum of all causes.

// Starts the ledger of a job that was just admitted.
void BeginLedger(absl::Time now, v1::Job* job);
// Continues the ledger after a coordinator restart; the earlier process may have had a later date.
void ResumeLedger(absl::Time now, v1::Job* job);
// Adds the time until `now`. No effect on a job that has ended. Also called before the job is shown.
void AdvanceLedger(absl::Time now, v1::Job* job);
// Called before the job's state becomes `next`. `retried`: since its attempt failed.
void AdvanceLedger(absl::Time now, v1::JobState next, bool retried, v1::Job* job);
// Closes the ledger at `end`: no time counts after it.
void EndLedger(absl::Time end, v1::Job* job);

// Accounts for a step report. `before`: the previous report of this attempt; empty if this is the first.
// Steps in between without a report are assumed to have taken as long as this one.
void MoveStep(const v1::StepReport& before, const v1::StepReport& step, absl::Time now, v1::Job* job);
void MoveSave(const v1::SavedCheckpoint& saved, absl::Time now, v1::Job* job);
void MoveLoad(const v1::RestoredCheckpoint& restored, absl::Time now, v1::Job* job);
void MoveHang(const v1::Job::Hang& hang, v1::Job* job);

}  // namespace fsdpd
