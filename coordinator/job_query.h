// What a reader's request asks the store for: the same at the coordinator that leads and at one that stands
// by.
//
// Errors are refusals (errors.h) that name the field. Pure.
#pragma once

#include <absl/status/statusor.h>

#include <string>

#include "coordinator/caller.h"
#include "coordinator/store/state_store.h"

namespace fsdpd {

absl::Status CheckJobId(const std::string& id);
absl::StatusOr<JobQuery> QueryOf(const Caller& caller, const v1::ListJobsRequest& request);

}  // namespace fsdpd
