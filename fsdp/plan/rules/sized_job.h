// The part of a job spec that its memory depends on, so that a spec with other faults can be told of this one
// too.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "proto/fsdpd/v1/job.pb.h"

namespace fsdpd {

// A job that needs the memory of `job` and has none of its faults, which are in `faulty_fields`; empty when
// one of them bears on memory.
std::optional<v1::JobSpec> SizedJob(const v1::JobSpec& job, const std::vector<std::string>& faulty_fields);

}  // namespace fsdpd
