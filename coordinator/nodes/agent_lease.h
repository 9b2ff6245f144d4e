// Lease of each agent: the only place that decides when a silent agent is lost. The coordinator itself may be
// suspended: stopped, migrated, or starved of CPU. Meanwhile agents give up their streams, and their messages
// wait in sockets. Therefore silence counts only while the coordinator is awake, and after a pause agents
// have the same grace to reconnect as after a start. A later pause does not renew that grace, so a
// coordinator that stalls repeatedly still detects lost agents.
//
// All decisions of one tick use the time at the start of the tick.
//
// Not thread-safe.
#pragma once

#include <absl/time/time.h>

#include <deque>
#include <functional>
#include <string>

#include "base/limits.h"

namespace fsdpd {

enum class Presence {
  kConnected,
  kExpected,      // No message since the coordinator's start, and still within its time to reconnect.
  kDisconnected,  // No stream, but not yet lost.
  kLost,
};
using PresenceOf = std::function<Presence(const std::string& node)>;

class AgentLease {
 public:
  // Maximum silence. It is below kAgentLostAfterMs because a tick and the delay of a failure (verdict.h)
  // follow before the jobs of the node report the loss.
  static constexpr absl::Duration kLostAfter = absl::Milliseconds(kAgentLostAfterMs - 500);

  // `grace`: time for agents to reconnect after the coordinator's start at `now`, or after a pause. `tick`:
  // the longest time between two ticks of a coordinator that is not suspended.
  AgentLease(absl::Duration grace, absl::Duration tick, absl::Time now);

  // Starts a tick. Returns how long the coordinator was suspended before it, or zero.
  absl::Duration BeginTick(absl::Time now);
  absl::Time now() const { return now_; }

  // Whether absent agents have had their time to reconnect after the start.
  bool Settled() const { return AwakeSince(start_) > grace_; }
  // `heard`: when the agent's last message arrived; InfinitePast if none arrived since the coordinator's
  // start.
  bool Expired(absl::Time heard) const;
  // Whether the agent has not reconnected since the start, and still has time to.
  bool Expected(absl::Time heard) const { return heard < start_ && !Settled(); }

 private:
  struct Pause {
    absl::Time end;
    absl::Duration before;  // Total length of all earlier pauses.
    absl::Duration length;
  };
  absl::Duration AwakeSince(absl::Time time) const;

  const absl::Duration grace_;
  const absl::Duration tick_;
  const absl::Time start_;
  absl::Time now_;
  std::deque<Pause> pauses_;  // The newest pauses, oldest first.
};

}  // namespace fsdpd
