// Texts of nodes: their table, `describe` and preflights. Pure functions of API messages.
#pragma once

#include <absl/time/time.h>

#include <string>
#include <vector>

#include "proto/fsdpd/v1/coordinator.pb.h"

namespace fsdpd {

// The coordinator's time, which ages of nodes are relative to, because its clock may differ from ours.
// Returns `here` for a response of an older release, which lacks it.
absl::Time CoordinatorTimeOf(const v1::ListNodesResponse& response, absl::Time here);
// `wide` adds ADDRESS and PREFLIGHT.
std::string NodeTable(const std::vector<v1::Node>& nodes, absl::Time now, int width = 0, bool wide = false);

// The newest preflight result: a row for each device, and the measurements that are below the limits.
std::string PreflightText(const v1::Node& node, absl::Time now);

// The node's row of the table of nodes, followed by PreflightText().
std::string DescribeNode(const v1::Node& node, absl::Time now);

}  // namespace fsdpd
