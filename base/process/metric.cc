#include "base/process/metric.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/check.h"

namespace fsdpd {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;

MetricFamily FamilyOf(absl::Span<const Metric> table, absl::string_view name) {
  const auto found =
      std::find_if(table.begin(), table.end(), [&](const Metric& metric) { return name == metric.name; });
  FSDPD_CHECK(found != table.end());
  MetricType type = MetricType::Gauge;
  if (found->kind == MetricKind::kCounter) type = MetricType::Counter;
  if (found->kind == MetricKind::kHistogram) type = MetricType::Histogram;
  return {found->name, found->help, type, {}};
}

void AddSample(MetricFamily* family, MetricLabels labels, double value) {
  FSDPD_CHECK(family->type != MetricType::Histogram);
  ClientMetric metric;
  metric.label = std::move(labels);
  (family->type == MetricType::Counter ? metric.counter.value : metric.gauge.value) = value;
  family->metric.push_back(std::move(metric));
}

void Histogram::Add(double value) {
  const auto bucket = std::lower_bound(bounds_.begin(), bounds_.end(), value);
  ++counts_[static_cast<size_t>(bucket - bounds_.begin())];
  sum_ += value;
}

void Histogram::AddTo(MetricFamily* family, MetricLabels labels) const {
  FSDPD_CHECK(family->type == MetricType::Histogram);
  ClientMetric metric;
  metric.label = std::move(labels);
  uint64_t count = 0;
  for (size_t i = 0; i < counts_.size(); ++i) {
    count += counts_[i];
    const double bound = i < bounds_.size() ? bounds_[i] : std::numeric_limits<double>::infinity();
    metric.histogram.bucket.push_back({count, bound});
  }
  metric.histogram.sample_count = count;
  metric.histogram.sample_sum = sum_;
  family->metric.push_back(std::move(metric));
}

}  // namespace fsdpd
