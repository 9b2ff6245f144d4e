#include "base/repeats.h"

#include <utility>

namespace fsdpd {

std::optional<int64_t> Repeats::Tell(const std::string& cause, absl::Time now) {
  MutexLock lock(&mutex_);
  const bool known = told_.size() < kMaxToldCauses || told_.count(cause) != 0;
  const auto [it, first] = told_.try_emplace(known ? cause : "", Told{now});
  if (first) return 0;
  Told& told = it->second;
  // Also if the clock was set back: an additional message is harmless.
  if (now >= told.last && now - told.last < kToldEvery) {
    ++told.since;
    return std::nullopt;
  }
  told.last = now;
  return std::exchange(told.since, 0);
}

}  // namespace fsdpd
