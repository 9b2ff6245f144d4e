// A quantity that only grows (joules, seconds of something), as it was read from time to time, and what it
// was at any moment between: even between two readings. Keeps kKept of the past. Thread safety: none.
#pragma once

#include <absl/time/time.h>

#include <deque>
#include <optional>

namespace fsdpd {

class RunningTotal {
 public:
  static constexpr absl::Duration kKept = absl::Minutes(5);

  // REQUIRES: times ascend. One below the last begins anew: a driver was loaded again.
  void Add(absl::Time at, double total);

  // What it grew by from `begin` to `end`. After the last reading it goes on growing as it last did, for
  // `ahead`. Empty: not known of that time.
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
