// Detector of memory spikes: steps whose peak is above 1.1 times the median of earlier steps, or above 1.1
// times the plan and higher than any earlier step. A spike can turn a job that fits into one that runs out of
// memory, so it is reported while it still fits.
//
// Every step enters the window, including spikes: a new level becomes normal after half a window. Not
// thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>

namespace fsdpd {

// The references that a spike exceeded.
struct Spike {
  int64_t median_bytes = 0;  // 0: too few earlier steps.
  int64_t plan_bytes = 0;    // 0: not compared with a plan.
};

class SpikeDetector {
 public:
  static constexpr double kFactor = 1.1;
  static constexpr int kWindow = 64;     // Steps of the median: enough to ignore single outliers.
  static constexpr int kMinHistory = 3;  // The first steps allocate memory that later ones reuse.

  // `plan_bytes`: the planned peak; 0: do not compare.
  explicit SpikeDetector(int64_t plan_bytes = 0) : plan_bytes_(plan_bytes) {}

  // Returns a value if the peak of this step is a spike.
  std::optional<Spike> Add(int64_t peak_bytes);

  int64_t spikes() const { return spikes_; }

 private:
  int64_t Median() const;

  int64_t plan_bytes_;
  std::deque<int64_t> window_;
  int64_t highest_ = 0;  // Highest peak of all steps.
  int64_t spikes_ = 0;
};

}  // namespace fsdpd
