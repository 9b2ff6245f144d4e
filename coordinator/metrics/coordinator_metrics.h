// Table of the metrics that a coordinator exports: name, kind, unit, labels and help of each, and the bucket
// bounds of its histograms. docs/references.py generates docs/metrics.md from it.
#pragma once

#include <absl/types/span.h>

#include "base/process/metric.h"

namespace fsdpd {

absl::Span<const Metric> CoordinatorMetrics();

// Reads take a millisecond. Calls that change a job wait for a tick (0.1 s) and a write. A plan of a large
// model takes seconds, and clients give up after about a minute.
constexpr double kCallBounds[] = {0.001, 0.005, 0.025, 0.1, 0.25, 1, 2.5, 10, 60};
// A write waits for the disk: half a millisecond on a fast one, 5 to 25 on etcd or a slow one. Above a second
// the disk stalls, and the tick with it.
constexpr double kStoreBounds[] = {0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 1, 5};
// A tick starts every 0.1 s. A longer tick delays jobs, and after 10 s agents count as lost.
constexpr double kTickBounds[] = {0.001, 0.01, 0.05, 0.1, 0.25, 1, 2.5, 10};
// From a launch on an idle cluster to a week in the queue.
constexpr double kQueueBounds[] = {1, 10, 60, 300, 900, 3600, 14400, 43200, 86400, 604800};
// Ranks exit within half a second and start within a few seconds. The backoff is one second at first and up
// to a minute later. Loading a large model takes minutes. The last bound is for long waits for slots, or for
// the replay of an hour of unsaved steps.
constexpr double kRecoveryBounds[] = {0.3, 1, 3, 10, 30, 60, 120, 300, 900, 3600};

}  // namespace fsdpd
