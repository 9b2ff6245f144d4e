#include "fsdp/data/sample_order.h"

#include <algorithm>

#include "base/check.h"

namespace fsdpd {

std::vector<SampleRange> Merged(std::vector<SampleRange> ranges) {
  std::sort(ranges.begin(), ranges.end(),
            [](const SampleRange& a, const SampleRange& b) { return a.first < b.first; });
  std::vector<SampleRange> merged;
  for (const SampleRange& range : ranges) {
    if (range.end <= range.first) continue;
    if (!merged.empty() && range.first <= merged.back().end) {
      merged.back().end = std::max(merged.back().end, range.end);
    } else {
      merged.push_back(range);
    }
  }
  return merged;
}

int64_t SampleNumber(const std::vector<SampleRange>& skipped_samples, int64_t origin, int64_t ordinal) {
  FSDPD_CHECK(origin >= 0 && ordinal >= 0);
  int64_t number = origin + ordinal;
  for (const SampleRange& range : skipped_samples) {
    if (range.end <= origin) continue;
    const int64_t first = std::max(range.first, origin);
    if (number < first) break;
    number += range.end - first;
  }
  return number;
}

}  // namespace fsdpd
