#include "agent/link/backoff.h"

#include <algorithm>

namespace fsdpd {

absl::Duration Backoff::Next() {
  current_ = current_ == absl::ZeroDuration() ? first_ : std::min(2 * current_, last_);
  return current_ * std::uniform_real_distribution<double>(0.5, 1.0)(random_);
}

}  // namespace fsdpd
