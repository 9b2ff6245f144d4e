#include "base/repeats.h"

#include <utility>

namespace fsdpd {

std::optional<int64_t> Repeats::Report(const std::string& cause, absl::Time now) {
  MutexLock lock(&mutex_);
  const bool known = reported_.size() < kMaxRepeatedCauses || reported_.count(cause) != 0;
  const auto [it, first] = reported_.try_emplace(known ? cause : "", Reported{now});
  if (first) return 0;
  Reported& told = it->second;
  // Also if the clock was set back: an additional message is harmless.
  if (now >= told.last && now - told.last < kReportInterval) {
    ++told.since;
    return std::nullopt;
  }
  told.last = now;
  return std::exchange(told.since, 0);
}

}  // namespace fsdpd
