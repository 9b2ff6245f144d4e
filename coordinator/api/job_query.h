// Translation of list requests to store queries, shared by the leader and standby coordinators.
//
// Errors are those of errors.h, with the field. Pure.
#pragma once

#include <absl/status/statusor.h>

#include <string>

#include "coordinator/access/caller.h"
#include "coordinator/store/state_store.h"

namespace fsdpd {

absl::StatusOr<JobQuery> QueryOf(const Caller& caller, const v1::ListJobsRequest& request);

}  // namespace fsdpd
