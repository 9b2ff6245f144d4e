// The refusal of a job that is larger than the store takes, by the field of its spec that has most of it.
//
// Pure.
#pragma once

#include <absl/strings/string_view.h>

#include "base/violation.h"
#include "proto/fsdpd/v1/job.pb.h"

namespace fsdpd {

// `why`: the store's words, with the numbers.
Violation TooLarge(const v1::JobSpec& spec, absl::string_view why);

}  // namespace fsdpd
