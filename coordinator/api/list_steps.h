// Steps of a job: ListSteps queries agents for the recorded steps, through the log relay and within its
// limits (log_relay.h), and merges their answers (step_history.h). It takes at most kStepsPatience.
// GetStepTimeline returns the timeline of the newest reported step.
//
// Thread-safe. Borrows its constructor arguments.
#pragma once

#include "base/clock.h"
#include "coordinator/agents/log_relay.h"
#include "coordinator/agents/timeline_board.h"
#include "coordinator/api/api_call.h"
#include "coordinator/api/job_service.h"

namespace fsdpd {

// Half of a call's deadline: a response without a slow node is still useful.
constexpr absl::Duration kStepsPatience = absl::Seconds(5);

class StepCalls {
 public:
  // `meters`: null if there are no metrics.
  StepCalls(JobService* jobs, const NodeRegistry* nodes, LogRelay* logs, const TimelineBoard* timelines,
            const Clock* clock, Meters* meters)
      : jobs_(jobs), nodes_(nodes), logs_(logs), timelines_(timelines), clock_(clock), meters_(meters) {}

  absl::Status ListSteps(const ApiCall& call, const v1::ListStepsRequest& request,
                         v1::ListStepsResponse* response);
  absl::Status GetStepTimeline(const ApiCall& call, const v1::GetStepTimelineRequest& request,
                               v1::GetStepTimelineResponse* response);

 private:
  JobService* const jobs_;
  const NodeRegistry* const nodes_;
  LogRelay* const logs_;
  const TimelineBoard* const timelines_;
  const Clock* const clock_;
  Meters* const meters_;
};

}  // namespace fsdpd
