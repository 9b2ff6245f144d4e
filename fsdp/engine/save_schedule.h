// After which steps a run saves: those that its spec names, and one soon after a rank asks. All ranks decide
// alike and ask nobody: who asks says so in the sums that a step shares anyway, every rank reads the same
// sum with the step's result, and results are read in the same order between the same steps everywhere.
//
//   Asks()         before a step is submitted: whether this rank asks with it
//   Saves()        ... whether it saves, on every rank
//   Submitted()    it is on its way
//   Collected()    its result: whether any rank has asked
//
// A checkpoint answers every request that came with its own step or an earlier one: a rank goes on asking
// with the steps that it submits until one saves.
//
// Thread safety: none; the trainer's.
#pragma once

#include <absl/time/time.h>

#include <cstdint>

#include "fsdp/plan/spec/spec.h"

namespace fsdpd {

class SaveSchedule {
 public:
  // Of a run that goes on after step `start` at `now`. `keeps_time`: of rank 0, which asks when
  // checkpoint.every_minutes are over; one that all ranks kept would ask as often as their clocks differ.
  // `spec` outlives it.
  SaveSchedule(const Spec* spec, bool keeps_time, int64_t start, absl::Time now)
      : spec_(spec), keeps_time_(keeps_time), start_(start), newest_(start), newest_at_(now) {}

  bool Asks(absl::Time now) const;
  bool Saves(int64_t step) const { return wanted_ || spec_->SavesAfter(step); }
  void Submitted(int64_t step, bool saves, bool asks, absl::Time now);
  void Collected(int64_t step, bool asked) { wanted_ |= asked && step > newest_; }

  // How many steps there are, from `next_step` on, until one can save: `steps` pass between a request and its
  // checkpoint, and this rank may have asked already.
  int64_t StepsToSave(int64_t next_step, int64_t steps) const;

  // The step submitted last that saves; the one that the run began after where there is none.
  int64_t newest() const { return newest_; }
  int64_t start() const { return start_; }

 private:
  const Spec* const spec_;
  const bool keeps_time_;
  const int64_t start_;
  bool wanted_ = false;
  int64_t newest_;
  absl::Time newest_at_;
  int64_t asked_ = 0;  // The first step after the newest that this rank asked with; 0: none.
};

}  // namespace fsdpd
