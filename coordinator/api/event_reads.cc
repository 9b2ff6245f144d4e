#include "coordinator/api/event_reads.h"

#include <absl/strings/str_cat.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "coordinator/api/page_token.h"
#include "coordinator/request/errors.h"
#include "coordinator/request/list_order.h"

namespace fsdpd {
namespace {

constexpr int kDefaultPage = 500, kMaxPage = 5000;  // An event has about 300 bytes, and at most about 20,000.
// Clients accept 16 MiB.
constexpr size_t kPageBytes = 4 << 20;
constexpr int kWatchPage = 500;
constexpr size_t kMaxName = 253;  // Limit of a node name; ids are shorter.
// Watchers of rare events need a recent cursor: an old one may no longer be retained after a reconnect.
constexpr int64_t kCursorEvery = 1000;
// The query of a list or watch request.
template <typename Request>
absl::StatusOr<EventQuery> QueryFrom(const Request& request) {
  EventQuery query;
  if (request.after() < 0) return BadField("after", "must not be negative");
  query.after = request.after();
  query.job = request.job();
  query.node = request.node();
  if (query.job.size() > kMaxName)
    return BadField("job", absl::StrCat("is too long (got ", query.job.size(), " characters, want at most ",
                                        kMaxName, ")"));
  if (query.node.size() > kMaxName)
    return BadField("node", absl::StrCat("is too long (got ", query.node.size(), " characters, want at most ",
                                         kMaxName, ")"));
  FSDPD_RETURN_IF_ERROR(RejectFilter(request.filter()));
  return query;
}

// Rejects a cursor of another state: a watcher behind it would wait forever without an error.
absl::Status CheckCursor(int64_t after, const EventPage& page) {
  if (page.newest == 0 || after <= page.newest) return absl::OkStatus();
  return BadField("after", absl::StrCat("there is no event ", after, " yet; the newest is ", page.newest));
}

}  // namespace

absl::StatusOr<EventPage> ReadLog(const EventLog& log, const EventQuery& query) {
  absl::StatusOr<EventPage> page = log.Read(query);
  if (!absl::IsOutOfRange(page.status())) return page;
  return Refusal(absl::StatusCode::kOutOfRange, "EVENTS_EXPIRED", page.status().message(),
                 {{"oldest", absl::StrCat(log.oldest())}});
}

absl::Status AnswerEvents(const v1::ListEventsRequest& request, ReadEvents read,
                          v1::ListEventsResponse* response) {
  FSDPD_ASSIGN_OR_RETURN(EventQuery query, QueryFrom(request));
  if (request.page_size() < 0) return BadField("page_size", "must not be negative");
  query.limit = request.page_size() == 0 ? kDefaultPage : std::min(request.page_size(), kMaxPage);
  query.max_bytes = kPageBytes;
  query.since_nanos = request.since_unix_nanos();
  FSDPD_ASSIGN_OR_RETURN(const ListOrder order, ParseListOrder(request.order_by(), {"sequence"}, {}));
  query.newest_first = order.descending;
  const std::string mark = ListMark(request.order_by());
  if (!request.page_token().empty()) {
    if (request.after() != 0 && !query.newest_first)
      return BadField("after", "is not supported with page_token, which contains it");
    const absl::StatusOr<int64_t> cursor = DecodeEventToken(request.page_token(), mark);
    if (!cursor.ok()) return BadField("page_token", cursor.status().message());
    (query.newest_first ? query.before : query.after) = *cursor;
  }
  FSDPD_ASSIGN_OR_RETURN(EventPage page, read(query));
  FSDPD_RETURN_IF_ERROR(CheckCursor(request.after(), page));
  for (v1::Event& event : page.events) *response->add_events() = std::move(event);
  if (!query.newest_first) response->set_cursor(page.cursor);
  if (page.more) response->set_next_page_token(EncodeEventToken(page.cursor, mark));
  return absl::OkStatus();
}

absl::Status StreamEvents(const v1::WatchEventsRequest& request, ReadEvents read,
                          absl::FunctionRef<bool(const v1::WatchEventsResponse& update)> write,
                          absl::FunctionRef<absl::Status(int64_t cursor, bool more)> after_page) {
  FSDPD_ASSIGN_OR_RETURN(EventQuery query, QueryFrom(request));
  query.limit = kWatchPage;
  int64_t reported = query.after;
  for (bool caught_up = false;;) {
    FSDPD_ASSIGN_OR_RETURN(const EventPage page, read(query));
    FSDPD_RETURN_IF_ERROR(CheckCursor(request.after(), page));
    v1::WatchEventsResponse update;
    for (const v1::Event& event : page.events) {
      *update.mutable_event() = event;
      update.set_cursor(reported = event.sequence());
      if (!write(update)) return absl::CancelledError("the client disconnected");
    }
    query.after = page.cursor;
    // A cursor without an event: once when the watcher has caught up, and after every kCursorEvery events
    // of other jobs and nodes.
    if ((!page.more && !caught_up) || page.cursor - reported >= kCursorEvery) {
      update.clear_event();
      update.set_cursor(reported = page.cursor);
      if (!write(update)) return absl::CancelledError("the client disconnected");
    }
    caught_up |= !page.more;
    FSDPD_RETURN_IF_ERROR(after_page(query.after, page.more));
  }
}

}  // namespace fsdpd
