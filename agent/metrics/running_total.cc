#include "agent/metrics/running_total.h"

#include <algorithm>

namespace fsdpd {

void RunningTotal::Add(absl::Time at, double total) {
  if (!readings_.empty() && total < readings_.back().total) readings_.clear();
  // For a total that does not change, keep only the first and last sample.
  const size_t count = readings_.size();
  if (count >= 2 && readings_[count - 2].total == total && readings_[count - 1].total == total)
    readings_.pop_back();
  readings_.push_back({at, total});
  // Keep one sample older than kRetention: it is needed to interpolate up to the next.
  while (readings_.size() > 2 && readings_[1].at < at - kRetention) readings_.pop_front();
}

std::optional<double> RunningTotal::At(absl::Time moment, absl::Duration ahead) const {
  if (readings_.size() < 2 || moment < readings_.front().at || moment > readings_.back().at + ahead)
    return std::nullopt;
  const auto after = std::partition_point(readings_.begin() + 1, readings_.end() - 1,
                                          [&](const Reading& reading) { return reading.at < moment; });
  const auto before = after - 1;
  const double seconds = absl::ToDoubleSeconds(after->at - before->at);
  if (seconds <= 0) return after->total;
  return before->total +
         (after->total - before->total) * absl::ToDoubleSeconds(moment - before->at) / seconds;
}

std::optional<double> RunningTotal::Between(absl::Time begin, absl::Time end, absl::Duration ahead) const {
  const std::optional<double> from = At(begin, ahead), to = At(end, ahead);
  if (!from.has_value() || !to.has_value() || end < begin) return std::nullopt;
  return *to - *from;
}

}  // namespace fsdpd
