#include "client/connect/job_choice.h"

#include <absl/strings/ascii.h>
#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/check.h"

namespace fsdpd {
namespace {

constexpr int kPageSize = 500;  // The maximum of the coordinator.
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

absl::StatusOr<v1::Job> GetJob(CoordinatorClient* client, const std::string& id) {
  v1::GetJobRequest request;
  request.set_id(id);
  FSDPD_ASSIGN_OR_RETURN(v1::GetJobResponse response, client->GetJob(request));
  return std::move(*response.mutable_job());
}

absl::StatusOr<v1::Node> FindNode(CoordinatorClient* client, const std::string& name, absl::Time* date) {
  FSDPD_ASSIGN_OR_RETURN(v1::ListNodesResponse response, client->ListNodes({}));
  if (date != nullptr && response.unix_nanos() != 0) *date = absl::FromUnixNanos(response.unix_nanos());
  for (v1::Node& node : *response.mutable_nodes()) {
    if (node.name() == name) return std::move(node);
  }
  return absl::NotFoundError(absl::StrCat("no node '", name, "'"));
}

absl::StatusOr<v1::Job> FindJob(CoordinatorClient* client, const std::string& id) {
  absl::StatusOr<v1::Job> exact = GetJob(client, id);
  if (!absl::IsNotFound(exact.status())) return exact;
  if (!std::all_of(id.begin(), id.end(), [](char c) { return absl::ascii_isalnum(c) || c == '-'; }))
    return exact;
  v1::ListJobsRequest list;
  list.set_all_projects(true);
  list.set_id_prefix(id);  // Ignored by a coordinator of release 0.1.
  list.set_page_size(kPageSize);
  std::vector<v1::Job> found;
  do {
    absl::StatusOr<v1::ListJobsResponse> page = client->ListJobs(list);
    if (!page.ok()) return exact;
    for (v1::Job& job : *page->mutable_jobs()) {
      if (found.size() <= kMaxNamed && absl::StartsWith(job.id(), id)) found.push_back(std::move(job));
    }
    list.set_page_token(page->next_page_token());
  } while (!list.page_token().empty() && found.size() <= kMaxNamed);
  if (found.empty()) return exact;
  if (found.size() == 1) return std::move(found.front());
  const bool more = found.size() > kMaxNamed;
  if (more) found.pop_back();
  const auto id_of = [](std::string* out, const v1::Job& job) { out->append(job.id()); };
  return absl::NotFoundError(absl::StrCat("'", id, "' is ambiguous: it matches ", more ? "more than " : "",
                                          found.size(), " jobs: ", absl::StrJoin(found, ", ", id_of),
                                          more ? ", ..." : ""));
}

}  // namespace fsdpd
