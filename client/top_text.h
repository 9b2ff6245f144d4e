// What runs now, as `top` shows it: pure functions from the API's messages to text.
#pragma once

#include <absl/time/time.h>

#include <string>
#include <vector>

#include "proto/fsdpd/v1/coordinator.pb.h"

namespace fsdpd {

// How many nodes, slots and jobs there are, then a line for each job that has slots, the one of the most
// ranks first: its newest step, its memory against the plan, and the watts of rank 0's card where NVML tells.
// `width` 0: never cut.
std::string TopText(const std::vector<v1::Job>& jobs, const std::vector<v1::Node>& nodes, absl::Time now,
                    int width);

}  // namespace fsdpd
