// JobService: listing and watching of the event log (store/event_log.h).
#include "base/check.h"
#include "coordinator/api/event_reads.h"
#include "coordinator/api/job_service.h"
#include "coordinator/request/errors.h"

namespace fsdpd {

grpc::Status JobService::ListEvents(grpc::ServerContext*, const v1::ListEventsRequest* request,
                                    v1::ListEventsResponse* response) {
  const auto read = [this](const EventQuery& query) { return ReadLog(parts_.store->events(), query); };
  return ToGrpc(AnswerEvents(*request, read, response));
}

grpc::Status JobService::WatchEvents(grpc::ServerContext* context, const v1::WatchEventsRequest* request,
                                     grpc::ServerWriter<v1::WatchEventsResponse>* writer) {
  const EventLog& log = parts_.store->events();
  const auto read = [&](const EventQuery& query) { return ReadLog(log, query); };
  const auto write = [&](const v1::WatchEventsResponse& update) { return writer->Write(update); };
  return ToGrpc(StreamEvents(*request, read, write, [&](int64_t cursor, bool more) {
    FSDPD_RETURN_IF_ERROR(CheckStream(context));
    if (!more) log.Await(cursor, kStreamPoll);
    return absl::OkStatus();
  }));
}

}  // namespace fsdpd
