#include "coordinator/agent_lease.h"

#include "base/limits.h"

namespace fsdpd {
namespace {

constexpr absl::Duration kLostAfter = absl::Milliseconds(kAgentLostAfterMs);
// A pause in which no heartbeat can be missed leaves a healthy agent most of its lease.
constexpr absl::Duration kPause = absl::Milliseconds(kHeartbeatIntervalMs);

}  // namespace

AgentLease::AgentLease(absl::Duration grace, absl::Duration tick, absl::Time now)
    : grace_(grace), tick_(tick), now_(now), awake_since_(now) {}

absl::Duration AgentLease::BeginTick(absl::Time now) {
  const absl::Duration since_last = now - now_;
  now_ = now;
  if (since_last <= tick_ + kPause) return absl::ZeroDuration();
  awake_since_ = now;
  return since_last;
}

bool AgentLease::Expired(absl::Time heard) const {
  if (heard < awake_since_ && !Settled()) return false;
  return now_ - heard > kLostAfter;
}

}  // namespace fsdpd
