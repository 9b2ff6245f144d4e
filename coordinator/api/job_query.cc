#include "coordinator/api/job_query.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/strip.h>

#include <algorithm>

#include "base/check.h"
#include "coordinator/api/page_token.h"
#include "coordinator/request/errors.h"
#include "coordinator/request/list_order.h"

namespace fsdpd {
namespace {

constexpr int kDefaultPage = 50;
constexpr int kMaxPage = 500;
// A page ends early at half of the message limit: jobs have specs of up to a megabyte.
constexpr size_t kMaxPageBytes = 8 << 20;

}  // namespace

absl::StatusOr<JobQuery> QueryOf(const Caller& caller, const v1::ListJobsRequest& request) {
  JobQuery query;
  if (request.all_projects() && !request.project().empty())
    return BadField("all_projects", "is not supported with project; drop one of them");
  query.project = request.project();
  if (query.project.empty() && !request.all_projects() && caller.role != PrincipalRole::kAdmin)
    query.project = caller.project;
  query.max_bytes = kMaxPageBytes;
  if (request.page_size() < 0) return BadField("page_size", "must not be negative");
  query.limit = request.page_size() == 0 ? kDefaultPage : std::min(request.page_size(), kMaxPage);
  for (int i = 0; i < request.states_size(); ++i) {
    const v1::JobState state = request.states(i);
    if (state == v1::JOB_STATE_UNSPECIFIED || !v1::JobState_IsValid(state)) {
      return BadField(absl::StrCat("states[", i, "]"),
                      absl::StrCat(static_cast<int>(state), " is not a job state"));
    }
    query.states.push_back(state);
  }
  absl::StatusOr<Selector> selector = ParseSelector(request.selector());
  if (!selector.ok()) return BadField("selector", selector.status().message());
  query.selector = *std::move(selector);
  query.id_prefix = request.id_prefix();
  absl::string_view prefix = request.filter();
  // The filter with which fsdpctl of release 0.1 completes an id.
  if (absl::ConsumePrefix(&prefix, "id : \"") && absl::ConsumeSuffix(&prefix, "\"")) {
    query.id_prefix = std::string(prefix);
  } else {
    FSDPD_RETURN_IF_ERROR(RejectFilter(request.filter()));
  }
  FSDPD_ASSIGN_OR_RETURN(
      const ListOrder order,
      ParseListOrder(request.order_by(), {"create_time", "end_time"}, {0, /*descending=*/true}));
  query.by_end = order.field == 1;
  query.ascending = !order.descending;
  if (request.page_token().empty()) return query;
  const absl::StatusOr<JobCursor> cursor =
      DecodePageToken(request.page_token(), ListMark(request.order_by()));
  if (!cursor.ok()) return BadField("page_token", cursor.status().message());
  query.after_cursor = true;
  query.cursor = *cursor;
  return query;
}

}  // namespace fsdpd
