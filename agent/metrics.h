// What an agent exports: name, kind, unit, labels and help of each metric; none of them is a histogram, as a
// rank has few series. docs/metrics.md is made of this (docs/metrics.py).
#pragma once

#include <absl/types/span.h>

#include "base/metric.h"

namespace fsdpd {

absl::Span<const Metric> AgentMetrics();

}  // namespace fsdpd
