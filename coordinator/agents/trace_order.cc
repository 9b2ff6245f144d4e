#include "coordinator/agents/trace_order.h"

#include <absl/strings/str_cat.h>

#include <algorithm>
#include <cmath>

#include "base/rank/trace_file.h"
#include "coordinator/job/job_plan.h"
#include "coordinator/request/errors.h"

namespace fsdpd {
namespace {

// Time for the order to reach every rank, also on busy nodes.
constexpr double kDeliverySeconds = 1;

// Ranks are at most this far ahead of rank 0's last report, because all of them take part in its collectives.
constexpr int64_t kStepsAhead = 2;

// Bounds the lookahead if steps are too short to measure.
constexpr double kShortestStepSeconds = 1e-5;

}  // namespace

absl::StatusOr<v1::TraceJobResponse::Order> OrderTrace(const v1::Job& job, int64_t steps) {
  if (steps < 1 || steps > kMaxTracedSteps)
    return BadField("steps", absl::StrCat("must be 1 to ", kMaxTracedSteps, " (got ", steps, ")"));
  const std::string subject = absl::StrCat("jobs/", job.id());
  if (job.state() != v1::JOB_STATE_RUNNING) {
    return WrongState("JOB_NOT_RUNNING", subject,
                      absl::StrCat("job ", job.id(), " is not training: ", job.reason()));
  }
  const v1::StepReport& last = job.last_step();
  if (last.step() == 0) {
    return WrongState(
        "JOB_HAS_NO_STEPS", subject,
        absl::StrCat("job ", job.id(), " has made no step yet; retry, or set telemetry.trace_steps"));
  }
  const double step_seconds = std::max(kShortestStepSeconds, last.step_seconds());  // Also replaces NaN.
  const int64_t steps_in_delivery = static_cast<int64_t>(std::ceil(kDeliverySeconds / step_seconds));
  v1::TraceJobResponse::Order order;
  order.set_first_step(last.step() + kStepsAhead + steps_in_delivery);
  const int64_t end = FilledSpec(job).train().steps();
  order.set_steps(std::min(steps, end - order.first_step() + 1));
  const PlaceRequest request = RequestOf(job);
  order.set_ranks(static_cast<int32_t>(request.nodes * request.ranks_per_node));
  if (order.steps() > 0) return order;
  return WrongState("JOB_ENDS_TOO_SOON", subject,
                    absl::StrCat("job ", job.id(), " ends with step ", end,
                                 ", before the order reaches its ranks; set telemetry.trace_steps"));
}

}  // namespace fsdpd
