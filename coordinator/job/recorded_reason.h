// Deduplication of the reasons of repeated requests: only a new reason is recorded. The job's current reason
// may have changed since, so its events are searched back to the first request.
//
// Pure.
#pragma once

#include <absl/strings/string_view.h>
#include <absl/types/span.h>

#include <string>

#include "proto/fsdpd/v1/coordinator.pb.h"

namespace fsdpd {

// `during`: states of the job since the first request. `asked`: prefixes of events that record such a
// request; the reason follows the prefix.
bool HasRecordedReason(const v1::Job& job, const std::string& reason, absl::Span<const v1::JobState> during,
                       absl::Span<const absl::string_view> asked);

}  // namespace fsdpd
