// JobService: what has happened, as it is kept (store/event_log.h), listed and watched.
#include <absl/strings/escaping.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/strip.h>

#include <algorithm>

#include "base/check.h"
#include "coordinator/errors.h"
#include "coordinator/job_query.h"
#include "coordinator/job_service.h"

namespace fsdpd {
namespace {

constexpr int kDefaultPage = 500, kMaxPage = 5000;  // An event has some 300 bytes, at most some 20,000.
// Clients take 16 MiB.
constexpr size_t kPageBytes = 4 << 20;
constexpr int kWatchPage = 500;
constexpr size_t kMaxName = 253;  // A node's; an id is shorter.
// Watchers of what seldom happens go on after a cursor that is not gone.
constexpr int64_t kCursorEvery = 1000;
constexpr char kTokenPrefix[] = "events/";

std::string PageToken(int64_t cursor) {
  return absl::WebSafeBase64Escape(absl::StrCat(kTokenPrefix, cursor));
}

absl::StatusOr<int64_t> CursorOf(const std::string& token) {
  std::string text;
  int64_t cursor = 0;
  absl::string_view rest;
  if (absl::WebSafeBase64Unescape(token, &text)) rest = text;
  if (absl::ConsumePrefix(&rest, kTokenPrefix) && absl::SimpleAtoi(rest, &cursor) && cursor >= 0)
    return cursor;
  return BadField("page_token",
                  "is not a token of this call; pass next_page_token of the page before unchanged");
}

// Of a request to list or to watch.
template <typename Request>
absl::StatusOr<EventQuery> QueryFrom(const Request& request) {
  EventQuery query;
  if (request.after() < 0) return BadField("after", "must not be negative");
  query.after = request.after();
  query.job = request.job();
  query.node = request.node();
  if (query.job.size() > kMaxName) return BadField("job", "is no job id: it is too long");
  if (query.node.size() > kMaxName) return BadField("node", "is no node's name: it is too long");
  return query;
}

}  // namespace

absl::StatusOr<EventPage> JobService::ReadEvents(const EventQuery& query) const {
  const EventLog& log = parts_.store->events();
  absl::StatusOr<EventPage> page = log.Read(query);
  if (!absl::IsOutOfRange(page.status())) return page;
  return Refusal(absl::StatusCode::kOutOfRange, "EVENTS_GONE", page.status().message(),
                 {{"oldest", absl::StrCat(log.oldest())}});
}

grpc::Status JobService::ListEvents(grpc::ServerContext*, const v1::ListEventsRequest* request,
                                    v1::ListEventsResponse* response) {
  absl::StatusOr<EventQuery> query = QueryFrom(*request);
  if (!query.ok()) return ToGrpc(query.status());
  if (request->page_size() < 0) return ToGrpc(BadField("page_size", "must not be negative"));
  query->limit = request->page_size() == 0 ? kDefaultPage : std::min(request->page_size(), kMaxPage);
  query->max_bytes = kPageBytes;
  query->since_nanos = request->since_unix_nanos();
  if (!request->page_token().empty()) {
    if (request->after() != 0)
      return ToGrpc(BadField("after", "is not said with a page_token, which says it already"));
    const absl::StatusOr<int64_t> cursor = CursorOf(request->page_token());
    if (!cursor.ok()) return ToGrpc(cursor.status());
    query->after = *cursor;
  }
  absl::StatusOr<EventPage> page = ReadEvents(*query);
  if (!page.ok()) return ToGrpc(page.status());
  for (v1::Event& event : page->events) *response->add_events() = std::move(event);
  response->set_cursor(page->cursor);
  if (page->more) response->set_next_page_token(PageToken(page->cursor));
  return grpc::Status::OK;
}

absl::Status JobService::WatchFrom(grpc::ServerContext* context, const v1::WatchEventsRequest& request,
                                   grpc::ServerWriter<v1::WatchEventsResponse>* writer) {
  FSDPD_ASSIGN_OR_RETURN(EventQuery query, QueryFrom(request));
  query.limit = kWatchPage;
  int64_t told = query.after;
  for (bool caught_up = false;;) {
    FSDPD_ASSIGN_OR_RETURN(const EventPage page, ReadEvents(query));
    v1::WatchEventsResponse update;
    for (const v1::Event& event : page.events) {
      *update.mutable_event() = event;
      update.set_cursor(told = event.sequence());
      if (!writer->Write(update)) return absl::CancelledError("the client is gone");
    }
    query.after = page.cursor;
    if ((!page.more && !caught_up) || page.cursor - told >= kCursorEvery) {
      update.clear_event();
      update.set_cursor(told = page.cursor);
      if (!writer->Write(update)) return absl::CancelledError("the client is gone");
    }
    caught_up |= !page.more;
    FSDPD_RETURN_IF_ERROR(CheckStream(context));
    if (!page.more) parts_.store->events().Await(query.after, kStreamPoll);
  }
}

grpc::Status JobService::WatchEvents(grpc::ServerContext* context, const v1::WatchEventsRequest* request,
                                     grpc::ServerWriter<v1::WatchEventsResponse>* writer) {
  if (reader_streams_.fetch_add(1) >= kMaxReaderStreams) {
    --reader_streams_;
    return ToGrpc(absl::ResourceExhaustedError(
        absl::StrCat("more than ", kMaxReaderStreams, " watches and log tails")));
  }
  const absl::Status status = WatchFrom(context, *request, writer);
  --reader_streams_;
  return ToGrpc(status);
}

}  // namespace fsdpd
