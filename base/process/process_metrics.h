// Metrics of this process under the names that Prometheus client libraries use, so that dashboards and alerts
// for other programs work here too. docs/references.py generates a section of docs/metrics.md from the table.
//
// Thread-safe.
#pragma once

#include <absl/types/span.h>
#include <prometheus/metric_family.h>

#include <vector>

#include "base/process/metric.h"

namespace fsdpd {

absl::Span<const Metric> ProcessMetrics();

// Reads /proc; a metric that cannot be read is left out.
void AddProcessMetrics(std::vector<prometheus::MetricFamily>* families);

}  // namespace fsdpd
