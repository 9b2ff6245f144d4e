// Sample numbering when some samples are skipped: the remaining ones, in ascending order. The position of a
// run is a single number, the first sample that it has not examined; everything after it follows from that
// and the ranges. A later run that knows the same ranges takes the same samples, with any world and batch
// size. A run whose position is past a range does not need to know it.
//
// Pure.
#pragma once

#include <cstdint>
#include <vector>

namespace fsdpd {

// Samples first .. end - 1.
struct SampleRange {
  int64_t first = 0;
  int64_t end = 0;

  friend bool operator==(const SampleRange& a, const SampleRange& b) {
    return a.first == b.first && a.end == b.end;
  }
};

// Sorts and merges the ranges; drops empty ones.
std::vector<SampleRange> Merged(std::vector<SampleRange> ranges);

// The number of the sample with 0-based index `ordinal` among the samples from `origin` on that are not
// skipped. REQUIRES: `skipped_samples` is from Merged(); origin and ordinal are not negative.
int64_t SampleNumber(const std::vector<SampleRange>& skipped_samples, int64_t origin, int64_t ordinal);

}  // namespace fsdpd
