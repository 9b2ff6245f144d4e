// The opaque page token of ListJobs: the position of a page's last job, so that pages neither repeat nor skip
// jobs while others are submitted. Opaque means that clients must not read it; it holds no secret.
#pragma once

#include <absl/status/statusor.h>

#include <string>

#include "coordinator/store/state_store.h"

namespace fsdpd {

std::string EncodePageToken(const JobCursor& cursor);
absl::StatusOr<JobCursor> DecodePageToken(const std::string& token);  // INVALID_ARGUMENT.

}  // namespace fsdpd
