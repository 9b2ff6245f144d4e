// Definition of a metric. Each daemon has a table of its metrics, uses it to export them, and
// docs/references.py generates docs/metrics.md from the tables in the source.
#pragma once

#include <absl/strings/string_view.h>
#include <absl/types/span.h>
#include <prometheus/metric_family.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
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

using MetricLabels = std::vector<prometheus::ClientMetric::Label>;

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

// Samples of a daemon's metrics, by family in the order of `table`. Not thread-safe.
class MetricSamples {
 public:
  explicit MetricSamples(absl::Span<const Metric> table);
  // REQUIRES: `table` contains `name`, and it is not a histogram.
  template <typename Number>
  void Add(absl::string_view name, Number value, MetricLabels labels = {}) {
    AddNumber(name, static_cast<double>(value), std::move(labels));
  }
  template <typename Number>
  void Add(absl::string_view name, const std::optional<Number>& value, MetricLabels labels = {}) {
    if (value.has_value()) Add(name, *value, std::move(labels));
  }
  void Add(absl::string_view name, const Histogram& histogram, MetricLabels labels = {}) {
    histogram.AddTo(Family(name), std::move(labels));
  }
  // Appends the families that have samples to `all`.
  void MoveTo(std::vector<prometheus::MetricFamily>* all);

 private:
  prometheus::MetricFamily* Family(absl::string_view name);
  void AddNumber(absl::string_view name, double value, MetricLabels labels);

  std::vector<prometheus::MetricFamily> families_;
  std::map<absl::string_view, size_t> index_;  // By name.
};

// Adds samples to `samples`, which outlives it, with `common` labels in front of their own.
class LabeledSamples {
 public:
  LabeledSamples(MetricSamples* samples, MetricLabels common)
      : samples_(samples), common_(std::move(common)) {}
  template <typename Value>
  void operator()(absl::string_view name, const Value& value, MetricLabels labels = {}) const {
    labels.insert(labels.begin(), common_.begin(), common_.end());
    samples_->Add(name, value, std::move(labels));
  }

 private:
  MetricSamples* const samples_;
  const MetricLabels common_;
};

}  // namespace fsdpd
