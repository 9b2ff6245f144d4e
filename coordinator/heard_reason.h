// Whether who asks for something again says why in other words than before: only that is told anew. What
// became the job's reason since may be another, so its events are asked, back to where it was asked first.
//
// Pure.
#pragma once

#include <absl/strings/string_view.h>
#include <absl/types/span.h>

#include <string>

#include "proto/fsdpd/v1/coordinator.pb.h"

namespace fsdpd {

// `during`: the states that a job is in from when it was asked first. `asked`: how events begin that say that
// it was asked; they end with its reason.
bool HasHeard(const v1::Job& job, const std::string& reason, absl::Span<const v1::JobState> during,
              absl::Span<const absl::string_view> asked);

}  // namespace fsdpd
