// History of a monotonically increasing quantity (joules, seconds), sampled from time to time, with linear
// interpolation between samples. Keeps the last kRetention. Not thread-safe.
#pragma once

#include <absl/time/time.h>

#include <deque>
#include <optional>

namespace fsdpd {

class RunningTotal {
 public:
  static constexpr absl::Duration kRetention = absl::Minutes(5);

  // REQUIRES: times ascend. A total below the last one restarts the history: the driver was reloaded.
  void Add(absl::Time at, double total);

  // Increase from `begin` to `end`. After the last sample, extrapolates for up to `ahead`. Empty if the
  // interval is not covered.
  std::optional<double> Between(absl::Time begin, absl::Time end, absl::Duration ahead) const;

 private:
  struct Reading {
    absl::Time at;
    double total = 0;
  };
  std::optional<double> At(absl::Time moment, absl::Duration ahead) const;

  std::deque<Reading> readings_;
};

}  // namespace fsdpd
