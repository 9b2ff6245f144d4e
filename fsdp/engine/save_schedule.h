// Save schedule: after which steps a run saves, namely those that the spec defines, and one soon after any
// rank requests it. All ranks decide alike without extra communication: a request is part of the all-reduce
// of a step, every rank reads the same result, and results are read in the same order everywhere.
//
//   RequestsSave() before a step is submitted: whether this rank's step carries a request
//   Saves()        before a step is submitted: whether it saves, on every rank
//   Submitted()    the step was submitted
//   Collected()    the result of a step: whether any rank requested a checkpoint
//
// A checkpoint answers all requests made with its own step or an earlier one. A rank repeats its request with
// every step it submits until one saves.
//
// Not thread-safe; used by the trainer.
#pragma once

#include <absl/time/time.h>

#include <cstdint>

#include "fsdp/plan/spec/spec.h"

namespace fsdpd {

class SaveSchedule {
 public:
  // For a run that resumes after step `start` at time `now`. `keeps_time`: set on rank 0 only, which requests
  // a checkpoint every checkpoint.every_minutes; if every rank did, their clocks would cause extra saves.
  // `spec` must outlive this object.
  SaveSchedule(const Spec* spec, bool keeps_time, int64_t start, absl::Time now)
      : spec_(spec), keeps_time_(keeps_time), start_(start), newest_(start), newest_at_(now) {}

  bool RequestsSave(absl::Time now) const;
  bool Saves(int64_t step) const { return wanted_ || spec_->SavesAfter(step); }
  void Submitted(int64_t step, bool saves, bool requests_save, absl::Time now);
  void Collected(int64_t step, bool asked) { wanted_ |= asked && step > newest_; }

  // Number of steps, starting with `next_step`, until one can save, if a request takes `steps` steps.
  // Accounts for a request that this rank already made.
  int64_t StepsToSave(int64_t next_step, int64_t steps) const;

  // The last submitted step that saves; start() if there is none.
  int64_t newest() const { return newest_; }
  int64_t start() const { return start_; }

 private:
  const Spec* const spec_;
  const bool keeps_time_;
  const int64_t start_;
  bool wanted_ = false;
  int64_t newest_;
  absl::Time newest_at_;
  int64_t asked_ = 0;  // First step since newest_ with this rank's request; 0: none.
};

}  // namespace fsdpd
