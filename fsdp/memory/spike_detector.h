// Tells steps whose memory peak stands out: above 1.1 times the median of the steps before it. A spike is
// what turns a job that fits into one that runs out of memory on some step, so it is counted while it still
// fits.
//
// Every step enters the window, spikes too: a level that stays becomes the normal one after half a window.
// Not thread-safe.
#pragma once

#include <cstdint>
#include <deque>

namespace fsdpd {

class SpikeDetector {
 public:
  static constexpr double kFactor = 1.1;
  static constexpr int kWindow = 64;  // Steps the median is over: enough that one odd step moves nothing.
  static constexpr int kMinHistory =
      3;  // The first steps allocate what later ones reuse; they are no yardstick.

  // True when this step's peak is a spike.
  bool Add(int64_t peak_bytes);

  int64_t spikes() const { return spikes_; }

 private:
  int64_t Median() const;

  std::deque<int64_t> window_;
  int64_t spikes_ = 0;
};

}  // namespace fsdpd
