#include "client/job_choice.h"

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/check.h"

namespace fsdpd {
namespace {

constexpr int kPageSize = 500;  // The largest that the coordinator gives.
constexpr size_t kMaxNamed = 5;

}  // namespace

absl::StatusOr<v1::ListJobsResponse> ListAllJobs(CoordinatorClient* client, v1::ListJobsRequest request,
                                                 int most) {
  request.set_page_size(most > 0 ? std::min(most, kPageSize) : kPageSize);
  v1::ListJobsResponse all;
  do {
    FSDPD_ASSIGN_OR_RETURN(v1::ListJobsResponse page, client->ListJobs(request));
    for (v1::Job& job : *page.mutable_jobs()) {
      if (most == 0 || all.jobs_size() < most) *all.add_jobs() = std::move(job);
    }
    request.set_page_token(page.next_page_token());
  } while (!request.page_token().empty() && (most == 0 || all.jobs_size() < most));
  return all;
}

absl::StatusOr<v1::Job> FindJob(CoordinatorClient* client, const std::string& id) {
  v1::GetJobRequest request;
  request.set_id(id);
  absl::StatusOr<v1::GetJobResponse> response = client->GetJob(request);
  if (response.ok()) return std::move(*response->mutable_job());
  if (!absl::IsNotFound(response.status())) return response.status();
  v1::ListJobsRequest list;
  list.set_all_projects(true);
  absl::StatusOr<v1::ListJobsResponse> all = ListAllJobs(client, list);
  if (!all.ok()) return response.status();
  std::vector<std::string> ids;
  v1::Job* found = nullptr;
  for (v1::Job& job : *all->mutable_jobs()) {
    if (!absl::StartsWith(job.id(), id)) continue;
    found = &job;
    ids.push_back(job.id());
  }
  if (ids.empty()) return response.status();
  if (ids.size() == 1) return std::move(*found);
  const size_t named = std::min(ids.size(), kMaxNamed);
  return absl::NotFoundError(
      absl::StrCat("the ids of ", ids.size(), " jobs begin with '", id,
                   "': ", absl::StrJoin(ids.begin(), ids.begin() + static_cast<int64_t>(named), ", "),
                   ids.size() > named ? ", ..." : ""));
}

}  // namespace fsdpd
