// In which order a run takes samples, which are numbers from 0, when some of them are passed over: those that
// are left, ascending. So where a run stands is one number, the first sample that it has not looked at, and
// what comes next follows from that and the ranges alone: any later run, over any world and batch, that knows
// the same ranges takes the same samples. A run that stands behind a range needs to know nothing of it.
//
// Pure.
#pragma once

#include <cstdint>
#include <vector>

namespace fsdpd {

// first .. end - 1.
struct SampleRange {
  int64_t first = 0;
  int64_t end = 0;

  friend bool operator==(const SampleRange& a, const SampleRange& b) {
    return a.first == b.first && a.end == b.end;
  }
};

// Ascending, and apart from each other. Empty ranges among `ranges` are dropped.
std::vector<SampleRange> Merged(std::vector<SampleRange> ranges);

// The number of the sample that is `ordinal`, from 0, among those from `origin` on that are not passed over.
// REQUIRES: `passed_over` as Merged() gives it; origin and ordinal are not negative.
int64_t SampleNumber(const std::vector<SampleRange>& passed_over, int64_t origin, int64_t ordinal);

}  // namespace fsdpd
