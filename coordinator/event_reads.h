// What readers of events ask for and are told: the same by the coordinator that leads and by one that stands
// by, each of a log of its own.
//
// Errors are refusals (errors.h): of a request, by its field, and OUT_OF_RANGE, EVENTS_GONE, where events
// after a cursor are kept no more. Pure but for what is passed in.
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

// Until an error. `write`: false where the client is gone. `go_on`: after each page, up to `cursor`; where
// there is no `more` it waits for what comes, or for a while.
absl::Status TellEvents(const v1::WatchEventsRequest& request, ReadEvents read,
                        absl::FunctionRef<bool(const v1::WatchEventsResponse& update)> write,
                        absl::FunctionRef<absl::Status(int64_t cursor, bool more)> go_on);

}  // namespace fsdpd
