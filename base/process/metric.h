// Definition of a metric. Each daemon has a table of its metrics, uses it to export them, and
// docs/references.py generates docs/metrics.md from the tables in the source.
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
  const char* unit;    // "seconds"; "" for counts.
  const char* labels;  // "method, code"; "" for none.
  const char* help;    // Without line breaks.
};

// A family without samples. REQUIRES: `table` contains `name`.
prometheus::MetricFamily FamilyOf(absl::Span<const Metric> table, absl::string_view name);

using MetricLabels = std::vector<prometheus::ClientMetric::Label>;

// Adds a sample. REQUIRES: the family is not a histogram.
void AddSample(prometheus::MetricFamily* family, MetricLabels labels, double value);

// Counts values by bucket. `bounds` are ascending and must outlive it. Not thread-safe.
class Histogram {
 public:
  explicit Histogram(absl::Span<const double> bounds) : bounds_(bounds), counts_(bounds.size() + 1) {}
  void Add(double value);
  void AddTo(prometheus::MetricFamily* family, MetricLabels labels) const;

 private:
  const absl::Span<const double> bounds_;
  std::vector<uint64_t> counts_;  // By bucket; the last one has no upper bound.
  double sum_ = 0;
};

}  // namespace fsdpd
