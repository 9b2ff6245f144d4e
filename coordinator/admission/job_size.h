// Error for a job that exceeds the store's size limit: names the largest field of its spec.
//
// Pure.
#pragma once

#include <absl/strings/string_view.h>

#include "base/spec_text/violation.h"
#include "proto/fsdpd/v1/job.pb.h"

namespace fsdpd {

// `why`: the store's message, with the sizes.
Violation TooLarge(const v1::JobSpec& spec, absl::string_view why);

}  // namespace fsdpd
