// Text of `top`: a live overview of the cluster. Pure function of API messages.
#pragma once

#include <absl/time/time.h>

#include <string>
#include <vector>

#include "proto/fsdpd/v1/coordinator.pb.h"

namespace fsdpd {

// The numbers of nodes, slots and jobs, then a line for each job that holds slots, in descending order of
// ranks: its newest step, its memory compared with the plan, and the power draw of rank 0's GPU in watts if
// NVML reports it. `width` 0: no truncation.
std::string TopText(const std::vector<v1::Job>& jobs, const std::vector<v1::Node>& nodes, absl::Time now,
                    int width);

}  // namespace fsdpd
