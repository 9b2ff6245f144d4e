// Text of one node. Pure functions of API messages. NodeTable() in job_text.h prints the table of all nodes.
#pragma once

#include <absl/time/time.h>

#include <string>

#include "proto/fsdpd/v1/coordinator.pb.h"

namespace fsdpd {

// The newest preflight result: a row for each device, and the measurements that are below the limits.
std::string PreflightText(const v1::Node& node, absl::Time now);

// The node's row of the table of nodes, followed by PreflightText().
std::string DescribeNode(const v1::Node& node, absl::Time now);

}  // namespace fsdpd
