#include "coordinator/nodes/agent_lease.h"

#include <algorithm>

namespace fsdpd {
namespace {

// Shorter pauses cost no heartbeat and leave a healthy agent most of its lease.
constexpr absl::Duration kPause = absl::Milliseconds(kHeartbeatIntervalMs);
// One hour of the shortest pauses. Forgetting older pauses makes a silence appear longer, never shorter.
constexpr size_t kMaxPauses = 1200;

}  // namespace

AgentLease::AgentLease(absl::Duration grace, absl::Duration tick, absl::Time now)
    : grace_(grace), tick_(tick), start_(now), now_(now) {}

absl::Duration AgentLease::BeginTick(absl::Time now) {
  const absl::Duration since_last = now - now_;
  now_ = now;
  if (since_last <= tick_ + kPause) return absl::ZeroDuration();
  // One tick of that time was awake: otherwise a coordinator that is slow in every tick would never be awake.
  Pause pause{now, absl::ZeroDuration(), since_last - tick_};
  if (!pauses_.empty()) pause.before = pauses_.back().before + pauses_.back().length;
  pauses_.push_back(pause);
  if (pauses_.size() > kMaxPauses) pauses_.pop_front();
  return since_last;
}

absl::Duration AgentLease::AwakeSince(absl::Time time) const {
  const auto first =
      std::find_if(pauses_.begin(), pauses_.end(), [time](const Pause& pause) { return pause.end > time; });
  // Silence that counts = now - time - (pauses that ended after `time`). Their total length is a difference
  // of prefix sums: `before` of the last pause plus its length, minus `before` of the first.
  if (first == pauses_.end()) return now_ - time;
  const absl::Duration together = pauses_.back().before + pauses_.back().length - first->before;
  // The part of the first pause before `time` does not belong to the silence.
  const absl::Duration earlier = std::max(time - (first->end - first->length), absl::ZeroDuration());
  return now_ - time - (together - earlier);
}

bool AgentLease::Expired(absl::Time heard) const {
  if (heard < start_) return Settled();
  // The last pause ended after the agent's last message, so the agent may have lost its stream in it.
  const bool slept_since = !pauses_.empty() && heard < pauses_.back().end;
  // An agent that gave up its stream during the pause needs the grace; the tick is the one in which the pause
  // was detected.
  return AwakeSince(heard) > (slept_since ? std::max(grace_, kLostAfter) + tick_ : kLostAfter);
}

}  // namespace fsdpd
