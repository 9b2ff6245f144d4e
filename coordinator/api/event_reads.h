// Reads of the event log for clients: shared by the leader and standby coordinators, each with its own log.
//
// Errors are those of errors.h: INVALID_ARGUMENT with the field of the request, and OUT_OF_RANGE
// (EVENTS_EXPIRED) if events after the cursor are no longer retained. Pure apart from the arguments.
#pragma once

#include <absl/functional/function_ref.h>
#include <absl/status/statusor.h>

#include "coordinator/store/event_log.h"
#include "proto/fsdpd/v1/coordinator.pb.h"

namespace fsdpd {

// As EventLog::Read().
using ReadEvents = absl::FunctionRef<absl::StatusOr<EventPage>(const EventQuery& query)>;
absl::StatusOr<EventPage> ReadLog(const EventLog& log, const EventQuery& query);

absl::Status AnswerEvents(const v1::ListEventsRequest& request, ReadEvents read,
                          v1::ListEventsResponse* response);

// Sends events until an error. `write`: false if the client disconnected. `after_page`: called after each
// page, up to `cursor`; without `more` it waits for new events or a timeout.
absl::Status StreamEvents(const v1::WatchEventsRequest& request, ReadEvents read,
                          absl::FunctionRef<bool(const v1::WatchEventsResponse& update)> write,
                          absl::FunctionRef<absl::Status(int64_t cursor, bool more)> after_page);

}  // namespace fsdpd
