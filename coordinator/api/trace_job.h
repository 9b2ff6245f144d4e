// TraceJob: orders the ranks to trace some of their next steps, and sends the traces when all ranks have
// written them. Traces are read like logs, with the same limits (log_relay.h).
//
// Thread-safe. Borrows its constructor arguments.
#pragma once

#include "base/clock.h"
#include "coordinator/agents/log_relay.h"
#include "coordinator/agents/trace_relay.h"
#include "coordinator/api/api_call.h"
#include "coordinator/api/job_service.h"

namespace fsdpd {

class TraceCalls {
 public:
  using Writer = grpc::ServerWriter<v1::TraceJobResponse>;

  TraceCalls(JobService* jobs, NodeRegistry* nodes, LogRelay* logs, TraceRelay* traces, const Clock* clock)
      : jobs_(jobs), nodes_(nodes), logs_(logs), traces_(traces), clock_(clock) {}

  absl::Status TraceJob(const ApiCall& call, const v1::TraceJobRequest& request, Writer* writer);

 private:
  // Sends trace orders to the ranks and waits for their replies. FAILED_PRECONDITION: the attempt ended
  // first.
  absl::Status AwaitTraces(const ApiCall& call, const v1::Job& job, const v1::TraceJobResponse::Order& order,
                           bool memory_snapshot, Writer* writer);
  absl::Status SendTraces(const ApiCall& call, const v1::Job& job, const LogRequest& read, Writer* writer);

  JobService* const jobs_;
  NodeRegistry* const nodes_;
  LogRelay* const logs_;
  TraceRelay* const traces_;
  const Clock* const clock_;
};

}  // namespace fsdpd
