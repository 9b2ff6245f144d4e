// A node as people read it: pure functions from the API's message to text. The table of all is job_text.h's.
#pragma once

#include <absl/time/time.h>

#include <string>

#include "proto/fsdpd/v1/coordinator.pb.h"

namespace fsdpd {

// What it was measured to be, a row for each device, and what of that is not enough.
std::string PreflightText(const v1::Node& node, absl::Time now);

// The same below its row in the table of nodes.
std::string DescribeNode(const v1::Node& node, absl::Time now);

}  // namespace fsdpd
