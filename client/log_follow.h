// Follows a job's log lines to its end across lost connections and coordinator restarts. A log is read again
// from its beginning then, and the lines that were shown are counted off, by attempt and rank; the agent's
// word on lines that are gone (base/log_gap.h) counts as many. With tail_lines nobody knows where the first
// line stood: what is written while the connection is lost is not shown, and that is told.
#pragma once

#include <absl/status/status.h>

#include <functional>
#include <string>

#include "client/coordinator_client.h"
#include "client/interrupt.h"
#include "client/job_follow.h"

namespace fsdpd {

// OK when the job has ended. UNAVAILABLE: the connection, or a node with a part of the log, stayed away.
// CANCELLED: `interrupt` fired. Any other error is the coordinator's. Both functions run on the calling
// thread.
absl::Status FollowLogs(CoordinatorClient* client, v1::TailLogsRequest request, const FollowOptions& options,
                        Interrupt* interrupt, const std::function<void(const v1::TailLogsResponse&)>& on_line,
                        const std::function<void(const std::string&)>& tell);

}  // namespace fsdpd
