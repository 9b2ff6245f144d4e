// Metrics of the coordinator: name, kind, unit, labels and help text of each, and the buckets of its
// histograms. docs/metrics.md is generated from this (docs/metrics.py).
#pragma once

#include <absl/types/span.h>

#include "base/metric.h"

namespace fsdpd {

absl::Span<const Metric> CoordinatorMetrics();

// Reads take a millisecond. A change of a job waits for a tick (0.1 s) and a write, and planning a large
// model takes seconds. Clients time out after a minute.
constexpr double kCallBounds[] = {0.001, 0.005, 0.025, 0.1, 0.25, 1, 2.5, 10, 60};
// A write waits for the disk: half a millisecond on a good one, 5 to 25 ms on a slow one or with etcd. Above
// a second the disk stalls, and the tick with it.
constexpr double kStoreBounds[] = {0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 1, 5};
// A tick starts every 0.1 s. A longer one delays waiting jobs; 10 s is the time until an agent is lost.
constexpr double kTickBounds[] = {0.001, 0.01, 0.05, 0.1, 0.25, 1, 2.5, 10};
// From a launch on an idle cluster to a week behind other jobs.
constexpr double kQueueBounds[] = {1, 10, 60, 300, 900, 3600, 14400, 43200, 86400, 604800};
// Ranks exit within half a second and start within a few seconds. The first retry waits one second, later
// ones up to a minute, and a large model loads for minutes. A recovery of an hour waited for slots, or had no
// recent checkpoint.
constexpr double kRecoveryBounds[] = {0.3, 1, 3, 10, 30, 60, 120, 300, 900, 3600};

}  // namespace fsdpd
