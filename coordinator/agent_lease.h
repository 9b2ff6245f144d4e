// When an agent that is not heard from is lost, judged by a coordinator that may stand still itself: stopped,
// migrated, or starved of its CPU. While it does, agents speak to nobody and give their streams up after some
// seconds; what they said waits in sockets. So silence counts only while the coordinator is awake, and after
// a pause agents have the time to come back that they have after its start. That time is not given anew by
// each pause: a coordinator that stalls again and again still finds out who is dead.
//
// The only judge of it: who keeps streams, places jobs or judges attempts asks here.
//
// All judgements of a tick are as of its begin: a coordinator that stands still within a tick sees that in
// the next one, before it has judged by a newer time.
//
// One thread.
#pragma once

#include <absl/time/time.h>

#include <deque>

#include "base/limits.h"

namespace fsdpd {

class AgentLease {
 public:
  // Of silence. By kAgentLostAfterMs its jobs say so, also of one that had just spoken: a tick, and what a
  // failure waits for others (verdict.h), come after it.
  static constexpr absl::Duration kLostAfter = absl::Milliseconds(kAgentLostAfterMs - 500);

  // `grace`: for agents to come back after the coordinator's start at `now`, or after it stood still. `tick`:
  // the longest time between two ticks of a coordinator that does not.
  AgentLease(absl::Duration grace, absl::Duration tick, absl::Time now);

  // A tick begins. How long the coordinator stood still before it; zero when it did not.
  absl::Duration BeginTick(absl::Time now);
  absl::Time now() const { return now_; }

  // Whether agents that are not there had their time to come back after the start.
  bool Settled() const { return AwakeSince(start_) > grace_; }
  // `heard`: when the agent last spoke; InfinitePast when it did not since the coordinator's start.
  bool Expired(absl::Time heard) const;
  // Likewise: it has not spoken since the start, and still has time to.
  bool Expected(absl::Time heard) const { return heard < start_ && !Settled(); }

 private:
  struct Pause {
    absl::Time end;
    absl::Duration before;  // What all pauses before it took together.
    absl::Duration length;
  };
  // How long the coordinator was awake since then.
  absl::Duration AwakeSince(absl::Time time) const;

  const absl::Duration grace_;
  const absl::Duration tick_;
  const absl::Time start_;
  absl::Time now_;
  std::deque<Pause> pauses_;  // The newest ones, in order.
};

}  // namespace fsdpd
