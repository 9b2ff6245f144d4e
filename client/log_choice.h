// Which lines of ranks' logs somebody wants, and in which order: by the time at which each was written.
//
// A line of fsdpd's own begins with its time ("2026-11-23T10:48:59.123Z"); one that does not, of a library or
// of Python, is of the time of the line before it of that rank.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <absl/strings/string_view.h>
#include <absl/time/time.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "proto/fsdpd/v1/coordinator.pb.h"

namespace fsdpd {

// A moment: "90", "90s", "5m", "2h" or "1d" before `now`, or a time as lines begin with it.
absl::StatusOr<absl::Time> ParseSince(absl::string_view text, absl::Time now);

// An extended regular expression, as `grep -E` reads it. One that holds, or may hold, is found anywhere in a
// line.
class LogPattern {
 public:
  static absl::StatusOr<LogPattern> Parse(const std::string& text);
  bool Matches(const std::string& line) const;

 private:
  std::shared_ptr<const void> compiled_;
};

class LogChoice {
 public:
  using Taker = std::function<void(const v1::TailLogsResponse&)>;

  // Lines from `since` on. `pattern`: null for all.
  LogChoice(absl::Time since, const LogPattern* pattern, Taker taker)
      : since_(since), pattern_(pattern), taker_(std::move(taker)) {}

  // Holds lines back from now on, until End(), to hand them on by time, and by rank where that is
  // the same. What does not fit in `max_bytes` is handed on as it comes after those; true when that has
  // happened.
  void Sort(size_t max_bytes) { max_bytes_ = max_bytes; }
  bool overflowed() const { return overflowed_; }

  void Take(const v1::TailLogsResponse& log);
  void End();  // No line comes any more.

 private:
  struct Held {
    absl::Time time;
    v1::TailLogsResponse log;
  };

  const absl::Time since_;
  const LogPattern* const pattern_;
  const Taker taker_;
  size_t max_bytes_ = 0, bytes_ = 0;
  bool overflowed_ = false;
  std::map<std::pair<int32_t, int32_t>, absl::Time> newest_;  // By attempt and rank.
  std::vector<Held> held_;
};

}  // namespace fsdpd
