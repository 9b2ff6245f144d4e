// Lists and watches of the event log (store/event_log.h): ListEvents and WatchEvents.
//
// Thread-safe. Borrows the store.
#pragma once

#include "coordinator/api/api_call.h"
#include "coordinator/store/state_store.h"

namespace fsdpd {

class EventCalls {
 public:
  explicit EventCalls(const StateStore* store) : store_(store) {}

  absl::Status ListEvents(const ApiCall& call, const v1::ListEventsRequest& request,
                          v1::ListEventsResponse* response);
  absl::Status WatchEvents(const ApiCall& call, const v1::WatchEventsRequest& request,
                           grpc::ServerWriter<v1::WatchEventsResponse>* writer);

 private:
  const StateStore* const store_;
};

}  // namespace fsdpd
