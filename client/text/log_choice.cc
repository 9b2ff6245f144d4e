#include "client/text/log_choice.h"

#include <absl/strings/match.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/strip.h>
#include <regex.h>

#include <algorithm>
#include <array>
#include <utility>

namespace fsdpd {
namespace {

constexpr size_t kTimeBytes = sizeof("2026-11-23T10:48:59.123Z") - 1;

// Returns false if the line does not start with a timestamp.
bool ReadTime(const std::string& line, absl::Time* time) {
  if (line.size() < kTimeBytes || line[4] != '-' || line[kTimeBytes - 1] != 'Z') return false;
  std::string error;
  return absl::ParseTime(absl::RFC3339_full, line.substr(0, kTimeBytes), time, &error);
}

// Parses "90", "1.5m" or "1h30m": each unit at most once, from the largest to the smallest.
bool ReadAgo(absl::string_view text, absl::Duration* ago) {
  constexpr std::array<std::pair<char, int>, 4> kUnits = {{{'d', 86400}, {'h', 3600}, {'m', 60}, {'s', 1}}};
  double seconds = 0, count = 0;
  for (const auto& [name, of_unit] : kUnits) {
    const size_t end = text.find(name);
    if (end == absl::string_view::npos) continue;
    if (!absl::SimpleAtod(text.substr(0, end), &count) || !(count > 0)) return false;
    seconds += count * of_unit;
    text.remove_prefix(end + 1);
    if (text.empty()) break;
  }
  // A number without a unit is seconds, if no other unit precedes it.
  if (!text.empty() && (seconds > 0 || !absl::SimpleAtod(text, &seconds))) return false;
  *ago = absl::Seconds(seconds);
  return seconds > 0 && seconds < 1e11;
}

}  // namespace

absl::StatusOr<absl::Time> ParseSince(absl::string_view text, absl::Time now) {
  absl::Time at;
  std::string error;
  if (absl::ParseTime(absl::RFC3339_full, text, &at, &error)) return at;
  absl::string_view time = text;
  absl::ConsumeSuffix(&time, " UTC");
  for (const char* form : {"%Y-%m-%d%ET%H:%M:%S", "%Y-%m-%d %H:%M:%E*S", "%Y-%m-%d %H:%M", "%Y-%m-%d"}) {
    if (absl::ParseTime(form, time, absl::UTCTimeZone(), &at, &error)) return at;
  }
  absl::Duration ago;
  if (ReadAgo(text, &ago)) return now - ago;
  return absl::InvalidArgumentError(
      absl::StrCat("'", text,
                   "' is not a time; use a duration (90, 90s, 5m, 1h30m, 1d) or a UTC time (2026-11-23, "
                   "'2026-11-23 17:00:00', 2026-11-23T17:00:00+01:00)"));
}

absl::StatusOr<LogPattern> LogPattern::Parse(const std::string& text) {
  auto compiled = std::make_unique<regex_t>();
  const int code = regcomp(compiled.get(), text.c_str(), REG_EXTENDED | REG_NOSUB);
  if (code != 0) {
    char reason[128];
    regerror(code, compiled.get(), reason, sizeof(reason));
    return absl::InvalidArgumentError(
        absl::StrCat("'", text, "' is not a valid extended regular expression: ", reason));
  }
  LogPattern pattern;
  pattern.compiled_ = std::shared_ptr<const void>(compiled.release(), [](const void* made) {
    auto* const own = static_cast<regex_t*>(const_cast<void*>(made));
    regfree(own);
    delete own;
  });
  return pattern;
}

bool LogPattern::Matches(const std::string& line) const {
  return regexec(static_cast<const regex_t*>(compiled_.get()), line.c_str(), 0, nullptr, 0) == 0;
}

void LogFilter::Take(const v1::TailLogsResponse& log) {
  const auto known = newest_.emplace(std::make_pair(log.attempt(), log.rank()), absl::InfinitePast()).first;
  ReadTime(log.line(), &known->second);
  const absl::Time time = known->second;
  // Notices of the agent describe the log as a whole, so filters do not apply to them.
  const bool is_selected = log.notice() || ((since_ == absl::InfinitePast() || time >= since_) &&
                                            (pattern_ == nullptr || pattern_->Matches(log.line())));
  if (!is_selected) return;
  if (max_bytes_ == 0) return sink_(log);
  bytes_ += log.line().size() + sizeof(Buffered);
  buffered_.push_back({time, log});
  if (bytes_ <= max_bytes_) return;
  overflowed_ = true;
  End();
}

void LogFilter::End() {
  const auto place = [](const Buffered& buffered) {
    return std::make_pair(buffered.time, buffered.log.rank());
  };
  std::stable_sort(buffered_.begin(), buffered_.end(),
                   [&](const Buffered& a, const Buffered& b) { return place(a) < place(b); });
  for (const Buffered& buffered : buffered_) sink_(buffered.log);
  buffered_.clear();
  max_bytes_ = 0;
}

}  // namespace fsdpd
