// What a metric is, said once: daemons keep a table of theirs, export by it, and docs/metrics.md is made of
// it (docs/metrics.py reads the tables as they are written).
#pragma once

#include <absl/strings/string_view.h>
#include <absl/types/span.h>
#include <prometheus/metric_family.h>

#include <cstdint>
#include <string>
#include <vector>

namespace fsdpd {

enum class MetricKind { kCounter, kGauge, kHistogram };

struct Metric {
  const char* name;
  MetricKind kind;
  const char* unit;    // "seconds"; "" for a number of things.
  const char* labels;  // "method, code"; "" for none.
  const char* help;    // Without line breaks.
};

// A family without samples. REQUIRES: `table` has one of that name.
prometheus::MetricFamily FamilyOf(absl::Span<const Metric> table, absl::string_view name);

using MetricLabels = std::vector<prometheus::ClientMetric::Label>;

// By the family's type, which is no histogram.
void AddSample(prometheus::MetricFamily* family, MetricLabels labels, double value);

// How often values up to each bound came. `bounds` ascend, and outlive it. Not thread-safe.
class Histogram {
 public:
  explicit Histogram(absl::Span<const double> bounds) : bounds_(bounds), counts_(bounds.size() + 1) {}
  void Add(double value);
  void AddTo(prometheus::MetricFamily* family, MetricLabels labels) const;

 private:
  const absl::Span<const double> bounds_;
  std::vector<uint64_t> counts_;  // By bucket; the last has no bound.
  double sum_ = 0;
};

}  // namespace fsdpd
