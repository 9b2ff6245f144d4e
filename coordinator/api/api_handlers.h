// Handlers of the public API on a leading coordinator, by the columns of base/api/api_table.h.
//
// Thread-safe. Borrows everything in Parts.
#pragma once

#include <functional>
#include <string>

#include "base/ids.h"
#include "coordinator/api/event_calls.h"
#include "coordinator/api/job_life.h"
#include "coordinator/api/job_service.h"
#include "coordinator/api/list_steps.h"
#include "coordinator/api/node_calls.h"
#include "coordinator/api/plan_calls.h"
#include "coordinator/api/tail_logs.h"
#include "coordinator/api/trace_job.h"

namespace fsdpd {

struct ApiHandlers {
  struct Parts {
    const Admission* admission;
    StateStore* store;
    JobBoard* board;
    Reconciler* reconciler;
    NodeRegistry* nodes;
    LogRelay* logs;
    TraceRelay* traces;
    TimelineBoard* timelines;
    Clock* clock;
    Meters* meters = nullptr;  // Null: no metrics.
    std::function<std::string(absl::string_view job_name)> new_id = NewJobId;
  };
  explicit ApiHandlers(const Parts& parts)
      : jobs({parts.admission, parts.store, parts.board, parts.reconciler, parts.nodes, parts.clock,
              parts.meters, parts.new_id}),
        changes(parts.reconciler),
        plans(parts.admission, parts.clock),
        logs(&jobs, parts.board, parts.nodes, parts.logs, parts.clock),
        steps(&jobs, parts.nodes, parts.logs, parts.timelines, parts.clock, parts.meters),
        traces(&jobs, parts.nodes, parts.logs, parts.traces, parts.clock),
        nodes(parts.nodes, parts.reconciler, parts.board, parts.clock),
        events(parts.store) {}

  JobService jobs;
  JobChanges changes;
  PlanCalls plans;
  LogCalls logs;
  StepCalls steps;
  TraceCalls traces;
  NodeCalls nodes;
  EventCalls events;
};

}  // namespace fsdpd
