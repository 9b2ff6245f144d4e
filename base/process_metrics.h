// Metrics of this process under the names that Prometheus client libraries use for them, so that dashboards
// and alerts of other programs work here too. docs/metrics.md is made of the table (docs/metrics.py).
//
// Thread-safe: functions.
#pragma once

#include <absl/types/span.h>
#include <prometheus/metric_family.h>

#include <vector>

#include "base/metric.h"

namespace fsdpd {

absl::Span<const Metric> ProcessMetrics();

// Reads /proc; a metric that cannot be read is left out.
void AddProcessMetrics(std::vector<prometheus::MetricFamily>* families);

}  // namespace fsdpd
