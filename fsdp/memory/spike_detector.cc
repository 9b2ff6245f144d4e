#include "fsdp/memory/spike_detector.h"

#include <algorithm>
#include <vector>

namespace fsdpd {

bool SpikeDetector::Add(int64_t peak_bytes) {
  const bool spike = window_.size() >= kMinHistory && peak_bytes > kFactor * Median();
  window_.push_back(peak_bytes);
  if (window_.size() > kWindow) window_.pop_front();
  if (spike) ++spikes_;
  return spike;
}

// Of an even number the upper one.
int64_t SpikeDetector::Median() const {
  std::vector<int64_t> peaks(window_.begin(), window_.end());
  const auto middle = peaks.begin() + peaks.size() / 2;
  std::nth_element(peaks.begin(), middle, peaks.end());
  return *middle;
}

}  // namespace fsdpd
