// TailLogs: sends the lines of consecutive attempts, with follow until the job has ended. Agents send them
// through the log relay, within its limits (log_relay.h).
//
// Thread-safe. Borrows its constructor arguments.
#pragma once

#include <string>

#include "base/clock.h"
#include "coordinator/agents/log_relay.h"
#include "coordinator/api/api_call.h"
#include "coordinator/api/job_service.h"

namespace fsdpd {

class LogCalls {
 public:
  using Writer = grpc::ServerWriter<v1::TailLogsResponse>;

  LogCalls(JobService* jobs, JobBoard* board, const NodeRegistry* nodes, LogRelay* logs, const Clock* clock)
      : jobs_(jobs), board_(board), nodes_(nodes), logs_(logs), clock_(clock) {}

  absl::Status TailLogs(const ApiCall& call, const v1::TailLogsRequest& request, Writer* writer);

 private:
  // Streams the lines of one attempt; with follow, until the attempt is over.
  absl::Status TailAttempt(const ApiCall& call, const v1::TailLogsRequest& request, const v1::Job& job,
                           int32_t attempt, Writer* writer);
  // Returns the job once it has an attempt after `attempt`, or has ended.
  absl::StatusOr<v1::Job> AwaitAttempt(const ApiCall& call, const std::string& id, int32_t attempt);

  JobService* const jobs_;
  JobBoard* const board_;
  const NodeRegistry* const nodes_;
  LogRelay* const logs_;
  const Clock* const clock_;
};

}  // namespace fsdpd
