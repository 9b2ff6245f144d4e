// Filter and merge of the log lines of several ranks, by time and pattern.
//
// A line of fsdpd starts with its time ("2026-11-23T10:48:59.123Z"). A line without one, such as a Python
// traceback, has the time of the preceding line of its rank.
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

// Parses a duration before `now` ("90", "90s", "5m", "2h", "1d") or a timestamp in the format of log lines.
absl::StatusOr<absl::Time> ParseSince(absl::string_view text, absl::Time now);

// A POSIX extended regular expression, like that of `grep -E`. It may match anywhere in a line.
class LogPattern {
 public:
  static absl::StatusOr<LogPattern> Parse(const std::string& text);
  bool Matches(const std::string& line) const;

 private:
  std::shared_ptr<const void> compiled_;
};

class LogFilter {
 public:
  using Sink = std::function<void(const v1::TailLogsResponse&)>;

  // Selects lines written at or after `since` that match `pattern` (null: all lines).
  LogFilter(absl::Time since, const LogPattern* pattern, Sink sink)
      : since_(since), pattern_(pattern), sink_(std::move(sink)) {}

  // Buffers lines from now on, and passes them on in End(), ordered by time and then by rank. Once the buffer
  // exceeds `max_bytes`, it is passed on and later lines are not sorted; overflowed() is then true.
  void EnableSorting(size_t max_bytes) { max_bytes_ = max_bytes; }
  bool overflowed() const { return overflowed_; }

  void Take(const v1::TailLogsResponse& log);
  void End();  // Call after the last line.

 private:
  struct Buffered {
    absl::Time time;
    v1::TailLogsResponse log;
  };

  const absl::Time since_;
  const LogPattern* const pattern_;
  const Sink sink_;
  size_t max_bytes_ = 0, bytes_ = 0;
  bool overflowed_ = false;
  std::map<std::pair<int32_t, int32_t>, absl::Time> newest_;  // By attempt and rank.
  std::vector<Buffered> buffered_;
};

}  // namespace fsdpd
