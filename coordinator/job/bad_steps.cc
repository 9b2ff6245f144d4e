#include "coordinator/job/bad_steps.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>

#include <algorithm>
#include <vector>

#include "base/check.h"
#include "coordinator/job/job_machine.h"
#include "coordinator/job/job_plan.h"

namespace fsdpd {
namespace {

void Keep(const v1::BadStep& bad, v1::Job* job) {
  auto* kept = job->mutable_bad_steps();
  *kept->Add() = bad;
  if (kept->size() > kMaxBadSteps) kept->DeleteSubrange(0, kept->size() - kMaxBadSteps);
}

std::string EventOf(const v1::BadStep& bad) {
  const std::string why =
      bad.kind() == v1::BAD_STEP_KIND_SPIKE
          ? absl::StrFormat("a spike, its gradient norm %g is above %g", bad.grad_norm(), bad.threshold())
          : absl::StrFormat("not finite, loss %g and gradient norm %g", bad.loss(), bad.grad_norm());
  return absl::StrFormat("step %d was skipped: %s (samples %d to %d)", bad.step(), why, bad.first_sample(),
                         bad.end_sample() - 1);
}

// The step that the next attempt resumes after, if it finds the newest known checkpoint.
int64_t NewestStep(const v1::Job& job) {
  const int64_t committed = job.checkpoints().empty() ? 0 : job.checkpoints().rbegin()->step();
  return std::max(committed, job.restored().step());
}

int64_t MaxRewinds(const v1::Job& job, v1::BadStepKind kind) {
  const v1::Train train = FilledSpec(job).train();
  return kind == v1::BAD_STEP_KIND_SPIKE ? train.on_spike().max() : train.on_nonfinite().max();
}

const char* FieldOf(v1::BadStepKind kind) {
  return kind == v1::BAD_STEP_KIND_SPIKE ? "train.on_spike" : "train.on_nonfinite";
}

// Adds `range` to the sorted, disjoint ranges of job.skipped_samples(): ranges that overlap or touch become
// one.
void Merge(v1::SampleRange range, v1::Job* job) {
  std::vector<v1::SampleRange> apart;
  for (const v1::SampleRange& each : job->skipped_samples()) {
    if (each.end() < range.first() || range.end() < each.first()) {
      apart.push_back(each);
      continue;
    }
    range.set_first(std::min(range.first(), each.first()));
    range.set_end(std::max(range.end(), each.end()));
  }
  apart.push_back(range);
  std::sort(apart.begin(), apart.end(), [](const auto& a, const auto& b) { return a.first() < b.first(); });
  job->mutable_skipped_samples()->Assign(apart.begin(), apart.end());
}

}  // namespace

bool TakeSkipped(const v1::StepReport& report, absl::Time now, v1::Job* job) {
  if (!report.has_bad_step()) return false;
  Keep(report.bad_step(), job);
  job->set_skipped_steps(job->skipped_steps() + 1);
  job->set_revision(job->revision() + 1);
  if (job->skipped_steps() <= kMaxBadSteps)
    AddEvent(v1::EVENT_KIND_BAD_STEP, EventOf(report.bad_step()), now, job);
  return true;
}

bool WantsRewind(const v1::Job& job) {
  return job.has_failure() && job.failure().attempt() == job.attempt() && job.failure().bad_step().rewind();
}

std::string WhyNoRewind(const v1::Job& job) {
  FSDPD_CHECK(WantsRewind(job));
  const v1::BadStep& bad = job.failure().bad_step();
  const int64_t max_rewinds = MaxRewinds(job, bad.kind());
  if (job.rewinds() >= max_rewinds) {
    return absl::StrCat("the job has rewound ", job.rewinds(), " times (", FieldOf(bad.kind()), ".max is ",
                        max_rewinds, ")");
  }
  // If the first step after a skipped range is bad too, skipping more samples would not help: the parameters
  // or the configuration are the cause.
  for (const v1::SampleRange& range : job.skipped_samples()) {
    const bool follows = range.end() == bad.first_sample() && bad.step() == job.restored().step() + 1;
    if (follows) {
      return absl::StrCat("the job rewound and skipped samples ", range.first(), " to ", range.end() - 1,
                          ", and the first step after them is bad too: the data is not the cause");
    }
  }
  return "";
}

v1::SampleRange RangeToSkip(const v1::Job& job) {
  FSDPD_CHECK(WantsRewind(job));
  const v1::BadStep& bad = job.failure().bad_step();
  // The bad step is followed backwards to the checkpoint: with a checkpoint of step 6, a bad step 9 with
  // samples [96, 108) and a global batch of 12, steps 7 and 8 had samples [72, 96), so [72, 108) is skipped.
  // The subtraction may reach below 0 if earlier steps ran with another batch size.
  const int64_t steps = std::max<int64_t>(0, bad.step() - 1 - NewestStep(job));
  v1::SampleRange range;
  range.set_first(std::max<int64_t>(0, bad.first_sample() - steps * FilledSpec(job).train().global_batch()));
  range.set_end(bad.end_sample());
  return range;
}

void Rewind(v1::Job* job) {
  Merge(RangeToSkip(*job), job);
  Keep(job->failure().bad_step(), job);
  job->set_rewinds(job->rewinds() + 1);
  job->set_rewinds_since_checkpoint(job->rewinds_since_checkpoint() + 1);
}

void BeginCounting(int64_t after_step, bool own, v1::Job* job) {
  // The steps of a foreign checkpoint say nothing about this job, so counting starts after them. Invariant:
  // all steps up to skipped_through were skipped, so the job was trained iff skipped_through is below its
  // last step.
  if (!own) job->set_skipped_through(after_step);
}

void TakeCounted(const v1::StepReport& report, v1::Job* job) {
  if (!report.has_bad_step())
    // A step that was applied ends the range of skipped steps in front of it.
    job->set_skipped_through(std::min(job->skipped_through(), std::max<int64_t>(0, report.step() - 1)));
}

void TakeCounted(const v1::RankExit& exit, v1::Job* job) {
  if (job->restored().step() > job->skipped_through())
    return;  // Some steps before it were, or may have been, applied.
  const bool counted = exit.first_counted_step() > 0;
  job->set_skipped_through(counted ? exit.first_counted_step() - 1
                                   : std::max(job->skipped_through(), exit.last_step()));
}

bool NothingCounted(const v1::Job& job) {
  const int64_t steps = FilledSpec(job).train().steps();
  return steps > 0 && job.skipped_through() >= steps;
}

std::string WhyNothingCounted(const v1::Job& job) {
  return absl::StrCat("none of ", FilledSpec(job).train().steps(),
                      " steps was applied: train.on_nonfinite or train.on_spike skipped all of them, and the "
                      "model was not trained");
}

}  // namespace fsdpd
