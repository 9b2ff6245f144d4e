#include "client/log_choice.h"

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

// False where the line begins otherwise.
bool ReadTime(const std::string& line, absl::Time* time) {
  if (line.size() < kTimeBytes || line[4] != '-' || line[kTimeBytes - 1] != 'Z') return false;
  std::string error;
  return absl::ParseTime(absl::RFC3339_full, line.substr(0, kTimeBytes), time, &error);
}

}  // namespace

absl::StatusOr<absl::Time> ParseSince(absl::string_view text, absl::Time now) {
  absl::Time at;
  std::string error;
  if (absl::ParseTime(absl::RFC3339_full, text, &at, &error)) return at;
  absl::string_view number = text;
  absl::Duration unit = absl::Seconds(1);
  constexpr std::array<std::pair<const char*, int>, 4> kUnits = {
      {{"s", 1}, {"m", 60}, {"h", 3600}, {"d", 86400}}};
  for (const auto& [name, seconds] : kUnits) {
    if (!absl::ConsumeSuffix(&number, name)) continue;
    unit = absl::Seconds(seconds);
    break;
  }
  double count = 0;
  if (absl::SimpleAtod(number, &count) && count > 0 && count < 1e9) return now - count * unit;
  return absl::InvalidArgumentError(
      absl::StrCat("'", text, "' is no time; write seconds, or 90s, 5m, 2h, 1d, or 2026-11-23T17:00:00Z"));
}

absl::StatusOr<LogPattern> LogPattern::Parse(const std::string& text) {
  auto compiled = std::make_unique<regex_t>();
  const int code = regcomp(compiled.get(), text.c_str(), REG_EXTENDED | REG_NOSUB);
  if (code != 0) {
    char words[128];
    regerror(code, compiled.get(), words, sizeof(words));
    return absl::InvalidArgumentError(
        absl::StrCat("'", text, "' is no extended regular expression: ", words));
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

void LogChoice::Take(const v1::TailLogsResponse& log) {
  const auto known = newest_.emplace(std::make_pair(log.attempt(), log.rank()), absl::InfinitePast()).first;
  ReadTime(log.line(), &known->second);
  const absl::Time time = known->second;
  // The agent's own word is of the log as it is now.
  const bool is_wanted = log.notice() || ((since_ == absl::InfinitePast() || time >= since_) &&
                                          (pattern_ == nullptr || pattern_->Matches(log.line())));
  if (!is_wanted) return;
  if (max_bytes_ == 0) return taker_(log);
  bytes_ += log.line().size() + sizeof(Held);
  held_.push_back({time, log});
  if (bytes_ <= max_bytes_) return;
  overflowed_ = true;
  End();
}

void LogChoice::End() {
  std::stable_sort(held_.begin(), held_.end(), [](const Held& a, const Held& b) { return a.time < b.time; });
  for (const Held& held : held_) taker_(held.log);
  held_.clear();
  max_bytes_ = 0;
}

}  // namespace fsdpd
