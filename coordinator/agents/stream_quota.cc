#include "coordinator/agents/stream_quota.h"

#include <absl/strings/str_cat.h>

namespace fsdpd {

absl::Status StreamQuota::Take(const std::string& owner, int limit) {
  MutexLock lock(&mutex_);
  const auto it = by_owner_.find(owner);
  if (it != by_owner_.end() && it->second >= limit) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "certificate of '", owner, "': too many open agent streams (got ", it->second + 1, ", want at most ",
        limit, "); run one agent per certificate, or retry when old streams have ended"));
  }
  if (taken_ >= kMaxAgentStreams) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "coordinator: too many open agent streams (want at most ", kMaxAgentStreams, "); retry later"));
  }
  ++taken_;
  ++by_owner_[owner];
  return absl::OkStatus();
}

void StreamQuota::Release(const std::string& owner) {
  MutexLock lock(&mutex_);
  --taken_;
  const auto it = by_owner_.find(owner);
  if (--it->second == 0) by_owner_.erase(it);
}

}  // namespace fsdpd
