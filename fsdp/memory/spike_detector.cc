#include "fsdp/memory/spike_detector.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace fsdpd {

std::optional<Spike> SpikeDetector::Add(int64_t peak_bytes) {
  const auto peak = static_cast<double>(peak_bytes);
  const bool knows = window_.size() >= kMinHistory;
  const Spike spike = {knows ? Median() : 0, plan_bytes_};
  const bool above_others = knows && peak > kFactor * static_cast<double>(spike.median_bytes);
  const bool above_plan = plan_bytes_ > 0 && peak > kFactor * static_cast<double>(plan_bytes_);
  const bool highest = peak_bytes > std::exchange(highest_, std::max(highest_, peak_bytes));
  window_.push_back(peak_bytes);
  if (window_.size() > kWindow) window_.pop_front();
  if (!above_others && !(above_plan && highest)) return std::nullopt;
  ++spikes_;
  return spike;
}

// The upper median if the count is even.
int64_t SpikeDetector::Median() const {
  std::vector<int64_t> peaks(window_.begin(), window_.end());
  const auto middle = peaks.begin() + peaks.size() / 2;
  std::nth_element(peaks.begin(), middle, peaks.end());
  return *middle;
}

}  // namespace fsdpd
