// Descriptions and summaries of one job. Pure functions of API messages.
#pragma once

#include <absl/time/time.h>

#include <string>
#include <vector>

#include "client/text/progress_line.h"
#include "proto/fsdpd/v1/coordinator.pb.h"

namespace fsdpd {

// Text of `describe JOB`.
std::string DescribeJob(const v1::Job& job, absl::Time now);

// A line for each checkpoint and warning that `job` has and its earlier state `before` did not have.
std::vector<std::string> NewJobLines(const v1::Job& before, const v1::Job& job);

// Summary of an ended job. `history` has the steps of its last attempt that were received; may be empty.
std::string Summary(const v1::Job& job, const StepHistory& history);

}  // namespace fsdpd
