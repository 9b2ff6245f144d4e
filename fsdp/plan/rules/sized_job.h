// Reduction of an invalid job spec to the part that determines its memory, so that a memory violation can be
// reported together with other errors.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "proto/fsdpd/v1/job.pb.h"

namespace fsdpd {

// A job with the same memory as `job` but without the errors in `faulty_fields`; empty if one of these fields
// affects memory.
std::optional<v1::JobSpec> SizedJob(const v1::JobSpec& job, const std::vector<std::string>& faulty_fields);

}  // namespace fsdpd
