// Lookup of nodes by name, and of jobs by id or by a unique prefix of an id, as Git resolves short commit
// ids.
#pragma once

#include <absl/status/statusor.h>
#include <absl/time/time.h>

#include <string>

#include "client/connect/coordinator_client.h"

namespace fsdpd {

absl::StatusOr<v1::Job> GetJob(CoordinatorClient* client, const std::string& id);

// Returns NOT_FOUND if there is no node of this name. Sets `date`, if given, to the coordinator's time, which
// an older release does not report.
absl::StatusOr<v1::Node> FindNode(CoordinatorClient* client, const std::string& name,
                                  absl::Time* date = nullptr);

// Returns the job with this id, else the only job of any project whose id has this prefix. Returns NOT_FOUND
// if several jobs match, with their ids.
absl::StatusOr<v1::Job> FindJob(CoordinatorClient* client, const std::string& id);

// Lists the jobs that match `request`, from all pages, at most `most` (0: no limit).
absl::StatusOr<v1::ListJobsResponse> ListAllJobs(CoordinatorClient* client, v1::ListJobsRequest request,
                                                 int most = 0);

}  // namespace fsdpd
