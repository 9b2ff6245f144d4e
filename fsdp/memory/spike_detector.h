// Tells steps whose memory peak stands out: above 1.1 times the median of the steps before it, or as far
// above the plan and higher than any step before. A spike is what turns a job that fits into one that runs
// out of memory on some step, so it is told of while it still fits.
//
// Every step enters the window, spikes too: a level that stays becomes the normal one after half a window.
// Not thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>

namespace fsdpd {

// What a step's peak stands out from.
struct Spike {
  int64_t median_bytes = 0;  // 0: too few steps came before.
  int64_t plan_bytes = 0;    // 0: there is no plan to compare with.
};

class SpikeDetector {
 public:
  static constexpr double kFactor = 1.1;
  static constexpr int kWindow = 64;  // Steps the median is over: enough that one odd step moves nothing.
  static constexpr int kMinHistory =
      3;  // The first steps allocate what later ones reuse; they are no yardstick.

  // `plan_bytes`: the peak that was planned; 0: none to compare with.
  explicit SpikeDetector(int64_t plan_bytes = 0) : plan_bytes_(plan_bytes) {}

  // Set when this step's peak is a spike.
  std::optional<Spike> Add(int64_t peak_bytes);

  int64_t spikes() const { return spikes_; }

 private:
  int64_t Median() const;

  int64_t plan_bytes_;
  std::deque<int64_t> window_;
  int64_t highest_ = 0;  // Of all steps.
  int64_t spikes_ = 0;
};

}  // namespace fsdpd
