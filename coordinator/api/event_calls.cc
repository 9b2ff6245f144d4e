#include "coordinator/api/event_calls.h"

#include "base/check.h"
#include "coordinator/access/reader_streams.h"
#include "coordinator/api/event_reads.h"

namespace fsdpd {

absl::Status EventCalls::ListEvents(const ApiCall&, const v1::ListEventsRequest& request,
                                    v1::ListEventsResponse* response) {
  const auto read = [this](const EventQuery& query) { return ReadLog(store_->events(), query); };
  return AnswerEvents(request, read, response);
}

absl::Status EventCalls::WatchEvents(const ApiCall& call, const v1::WatchEventsRequest& request,
                                     grpc::ServerWriter<v1::WatchEventsResponse>* writer) {
  const EventLog& log = store_->events();
  const auto read = [&](const EventQuery& query) { return ReadLog(log, query); };
  const auto write = [&](const v1::WatchEventsResponse& update) { return writer->Write(update); };
  return StreamEvents(request, read, write, [&](int64_t cursor, bool more) {
    FSDPD_RETURN_IF_ERROR(call.CheckOpen());
    if (!more) log.Await(cursor, kStreamPoll);
    return absl::OkStatus();
  });
}

}  // namespace fsdpd
