#include "coordinator/job/step_pace.h"

#include <algorithm>

namespace fsdpd {
namespace {

// A step may take this many times the recent duration, and at least the floor: steps vary, reports wait in
// queues, and a stall is reported to users, who need no faster reaction.
constexpr int kPatience = 5;
constexpr absl::Duration kFloor = absl::Seconds(10);
// Before the second step models are initialized, files opened and kernels selected.
constexpr absl::Duration kFirstSteps = absl::Minutes(5);
// A slow step (the first, an evaluation) decays over some twenty later ones.
constexpr double kKept = 0.9;

}  // namespace

void StepPace::Take(const v1::StepReport& before, const v1::StepReport& step, absl::Time now) {
  const absl::Duration waited = now - since_;
  since_ = now;
  stalled_ = false;
  if (before.step() == 0 || step.step() <= before.step()) return;
  // The minimum of the rank's clock and the coordinator's: neither an outage between the reports nor a change
  // of the date counts as a slow step.
  const absl::Duration stamped =
      absl::FromUnixNanos(step.unix_nanos()) - absl::FromUnixNanos(before.unix_nanos());
  const absl::Duration apart = std::min(stamped, waited) / (step.step() - before.step());
  step_ = std::max({apart, absl::Seconds(step.step_seconds()), kKept * step_});
}

bool StepPace::Stalled(absl::Time now) {
  const bool known = step_ > absl::ZeroDuration();
  stalled_ |= now - since_ > (known ? std::max(kFloor, kPatience * step_) : kFirstSteps);
  return stalled_;
}

}  // namespace fsdpd
