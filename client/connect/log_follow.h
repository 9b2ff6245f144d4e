// Stream of a job's log lines until it ends, across lost connections and restarts of the coordinator.
//
// After a reconnect, the log is read again from its beginning. Lines that were shown are skipped by their
// count per attempt and rank; a gap notice of the agent (base/rank/log_gap.h) counts as the lines that it
// replaces. With tail_lines, the position of the first line is unknown, so lines written while disconnected
// are lost. A notice reports that.
#pragma once

#include <absl/status/status.h>

#include <functional>
#include <string>

#include "client/connect/coordinator_client.h"
#include "client/connect/job_follow.h"
#include "client/text/interrupt.h"

namespace fsdpd {

// Returns OK when the job has ended. UNAVAILABLE: the connection, or a node that has a part of the log, did
// not come back. CANCELLED: `interrupt` fired. Any other error is from the coordinator. Both callbacks run on
// the calling thread.
absl::Status FollowLogs(CoordinatorClient* client, v1::TailLogsRequest request, const FollowOptions& options,
                        Interrupt* interrupt, const std::function<void(const v1::TailLogsResponse&)>& on_line,
                        const std::function<void(const std::string&)>& on_notice);

}  // namespace fsdpd
