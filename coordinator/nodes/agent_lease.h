// Lease of each agent: decides when a silent agent is lost. The coordinator itself may be suspended: stopped,
// migrated, or starved of CPU. Meanwhile agents get no answers, give up their streams after some seconds, and
// their messages wait in sockets. Therefore silence counts only while the coordinator is awake, and after a
// pause agents have the same grace to reconnect as after a start. A later pause does not renew that grace, so
// a coordinator that stalls repeatedly still detects lost agents.
//
// Only this class decides whether an agent is lost: code that keeps streams, places jobs or judges attempts
// asks it.
//
// All decisions of one tick use the time at the start of the tick. A coordinator that is suspended within a
// tick detects it at the next BeginTick, before it decides by a newer time.
//
// Not thread-safe.
#pragma once

#include <absl/time/time.h>

#include <deque>

#include "base/limits.h"

namespace fsdpd {

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
  // How long the coordinator was awake since `time`.
  absl::Duration AwakeSince(absl::Time time) const;

  const absl::Duration grace_;
  const absl::Duration tick_;
  const absl::Time start_;
  absl::Time now_;
  std::deque<Pause> pauses_;  // The newest pauses, oldest first.
};

}  // namespace fsdpd
