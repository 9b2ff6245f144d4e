// Which job a person means who writes the beginning of an id.
#pragma once

#include <absl/status/statusor.h>

#include <string>

#include "client/coordinator_client.h"

namespace fsdpd {

// The job of that id; where there is none, the one job whose id begins so, of whatever project. NOT_FOUND
// where several do, with their ids.
absl::StatusOr<v1::Job> FindJob(CoordinatorClient* client, const std::string& id);

// Every job that `request` asks for, of all pages, `most` at most (0: no bound).
absl::StatusOr<v1::ListJobsResponse> ListAllJobs(CoordinatorClient* client, v1::ListJobsRequest request,
                                                 int most = 0);

}  // namespace fsdpd
