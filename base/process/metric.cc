#include "base/process/metric.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/check.h"

namespace fsdpd {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;

MetricSamples::MetricSamples(absl::Span<const Metric> table) {
  for (const Metric& metric : table) {
    MetricType type = MetricType::Gauge;
    if (metric.kind == MetricKind::kCounter) type = MetricType::Counter;
    if (metric.kind == MetricKind::kHistogram) type = MetricType::Histogram;
    index_[metric.name] = families_.size();
    families_.push_back({metric.name, metric.help, type, {}});
  }
}

MetricFamily* MetricSamples::Family(absl::string_view name) {
  const auto found = index_.find(name);
  FSDPD_CHECK(found != index_.end());
  return &families_[found->second];
}

void MetricSamples::AddNumber(absl::string_view name, double value, MetricLabels labels) {
  MetricFamily* const family = Family(name);
  FSDPD_CHECK(family->type != MetricType::Histogram);
  ClientMetric metric;
  metric.label = std::move(labels);
  (family->type == MetricType::Counter ? metric.counter.value : metric.gauge.value) = value;
  family->metric.push_back(std::move(metric));
}

void MetricSamples::MoveTo(std::vector<MetricFamily>* all) {
  for (MetricFamily& family : families_) {
    if (!family.metric.empty()) all->push_back(std::move(family));
  }
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
