// What the coordinator exports: name, kind, unit, labels and help of each metric, and which values its
// histograms tell apart. docs/metrics.md is made of this (docs/metrics.py).
#pragma once

#include <absl/types/span.h>

#include "base/metric.h"

namespace fsdpd {

absl::Span<const Metric> CoordinatorMetrics();

// Reads take a millisecond. What changes a job waits for a tick (0.1 s) and a write, a plan of a large model
// takes seconds; beyond a minute is what clients give up on.
constexpr double kCallBounds[] = {0.001, 0.005, 0.025, 0.1, 0.25, 1, 2.5, 10, 60};
// A write waits for the disk: half a millisecond on a good one, 5 to 25 on etcd's or a slow one. Over a
// second a disk stalls, and the tick with it.
constexpr double kStoreBounds[] = {0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 1, 5};
// A tick begins every 0.1 s; one that takes longer delays what jobs wait for, and one of 10 s is as long as
// agents wait until they are lost.
constexpr double kTickBounds[] = {0.001, 0.01, 0.05, 0.1, 0.25, 1, 2.5, 10};
// From a launch on an idle cluster to a week behind others.
constexpr double kQueueBounds[] = {1, 10, 60, 300, 900, 3600, 14400, 43200, 86400, 604800};
// Ranks leave within half a second and start within a few, a first try again waits for one, a later one for
// up to a minute; a large model is loaded for minutes. What takes an hour waited for slots, or had saved
// nothing for as long.
constexpr double kRecoveryBounds[] = {0.3, 1, 3, 10, 30, 60, 120, 300, 900, 3600};

}  // namespace fsdpd
