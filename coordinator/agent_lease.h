// When an agent that is not heard from is lost, judged by a coordinator that may stand still itself: stopped,
// migrated, or starved of its CPU. While it does, agents speak to nobody and give their streams up after some
// seconds; what they said waits in sockets. So silence from before the coordinator last woke proves nothing
// until the agents had the time to come back that they have after its start.
//
// All judgements of a tick are as of its begin: a coordinator that stands still within a tick sees that in
// the next one, before it has judged by a newer time.
//
// One thread.
#pragma once

#include <absl/time/time.h>

namespace fsdpd {

class AgentLease {
 public:
  // `grace`: for agents to come back after the coordinator's start at `now`, or after it stood still. `tick`:
  // the longest time between two ticks of a coordinator that does not.
  AgentLease(absl::Duration grace, absl::Duration tick, absl::Time now);

  // A tick begins. How long the coordinator stood still before it; zero when it did not.
  absl::Duration BeginTick(absl::Time now);
  absl::Time now() const { return now_; }

  // Whether agents that are not there had their time to come back.
  bool Settled() const { return now_ - awake_since_ > grace_; }
  // `heard`: when the agent last spoke; InfinitePast when it did not since the coordinator's start.
  bool Expired(absl::Time heard) const;

 private:
  const absl::Duration grace_;
  const absl::Duration tick_;
  absl::Time now_;
  absl::Time awake_since_;
};

}  // namespace fsdpd
