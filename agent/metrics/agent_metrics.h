// Table of the metrics that an agent exports: name, kind, unit, labels and help of each. None is a histogram,
// to keep the number of series per rank low. docs/references.py generates docs/metrics.md from it.
#pragma once

#include <absl/types/span.h>

#include "base/process/metric.h"

namespace fsdpd {

absl::Span<const Metric> AgentMetrics();

}  // namespace fsdpd
