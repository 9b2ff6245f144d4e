// The agent's end of the protocol with its coordinator, without the stream and its threads: what a stream
// begins with, which messages of the coordinator it takes, what it says next and when, and what its loss
// means. What carries the messages is its owner's: gRPC in coordinator_link.h, a simulated network in
// tests/sim.
//
//   Begin -> write what it gives -> { Check -> Welcome, once, or Take ... | Next -> write it -> Written }
//         -> End
//
// An agent that stood still may find orders that its coordinator has given up since, and forgotten where it
// was started again: that holds an agent lost which it has not heard for its lease. So a stream on which
// nothing was said for so long is over, with all that waits in it, whoever was away (Lapsed). The next one
// tells what is hosted, and what the coordinator still wants it says again.
//
// Thread safety: none; the owner locks.
#pragma once

#include <absl/status/status.h>
#include <absl/time/time.h>

#include <algorithm>
#include <cstdint>

#include "agent/outbox.h"
#include "base/clock.h"
#include "base/limits.h"
#include "proto/fsdpd/v1/agent.pb.h"

namespace fsdpd {

class Attachment {
 public:
  // `clock` outlives it. `fenced`: there are several coordinators of one state, whose epochs never go back.
  // Those of one coordinator may, with a state that was put back by other means than its own.
  explicit Attachment(Clock* clock, int max_lifecycle = Outbox::kMaxLifecycle, bool fenced = false)
      : clock_(clock), fenced_(fenced), outbox_(kMaxBufferedReports, max_lifecycle) {}

  // How long nothing may be said on a stream: no longer than AgentLease::kLostAfter, which a coordinator
  // counts from when it heard, and that is later. One that asks for rarer heartbeats awaits three of them.
  static constexpr absl::Duration kLease = absl::Milliseconds(kAgentLostAfterMs - 500);
  static constexpr char kLapsedWords[] =
      "nothing was said for so long that the coordinator may hold this agent lost";

  Outbox& outbox() { return outbox_; }

  // A new stream, and its first message: `registration` with the ranks whose exits are on their way. They
  // count as hosted, since it is the exit that must tell of their end.
  v1::AgentMessage Begin(v1::Register registration);

  // Whether the coordinator keeps to the protocol with it: Welcome with an epoch comes first, and the rest
  // bears that. One of several coordinators that led before the one that was heard last is not obeyed, and
  // nothing of a stream that has lapsed. After an error the stream ends.
  absl::Status Check(const v1::CoordinatorMessage& message) const;
  // REQUIRES: Check() was OK. Welcome is the first message; Take is for each other one, before it is acted
  // upon.
  void Welcome(const v1::CoordinatorMessage& message);
  void Take(const v1::CoordinatorMessage& message);
  // False while what earlier orders led to has not been told: the next one waits.
  static bool IsOrder(const v1::CoordinatorMessage& message) {
    return message.has_launch() || message.has_stop();
  }
  bool MayTakeOrders() const { return outbox_.has_room(); }

  // The message to write now, with the ticket for Written; -1 is a heartbeat's. False when there is none
  // until something is added, or it is due().
  bool Next(v1::AgentMessage* message, int64_t* ticket);
  void Written(int64_t ticket);
  absl::Time due() const { return due_; }  // Of the next heartbeat; of the Welcome while that has not come.
  bool Overdue() const { return !welcomed_ && clock_->Now() >= due_; }
  // Whether nothing was said on the stream for kLease, and the coordinator may hold this agent lost. It stays
  // so: the stream is to end. Who takes an order that had to wait asks again.
  bool Lapsed() const { return LapsedBy(clock_->Now()); }

  // The stream has ended. `in_order`: the coordinator has read all that was written.
  void End(bool in_order);

  bool welcomed() const { return welcomed_; }  // By the present stream.
  bool ever_welcomed() const { return ever_welcomed_; }
  int64_t epoch() const { return epoch_; }
  // Whether a stream that ended so leaves no hope: a first attach that is refused, not for want of room or
  // time.
  bool RefusedForGood(const absl::Status& status) const;

 private:
  bool LapsedBy(absl::Time now) const {
    return lapsed_ || now - said_ > std::max(kLease, 3 * heartbeat_interval_);
  }

  Clock* const clock_;
  const bool fenced_;
  Outbox outbox_;
  int64_t epoch_ = 0;
  int64_t newest_epoch_ = 0;  // Of all streams that were welcomed.
  bool welcomed_ = false;
  bool ever_welcomed_ = false;
  absl::Duration heartbeat_interval_ = absl::Milliseconds(kHeartbeatIntervalMs);
  absl::Time due_ = absl::InfiniteFuture();
  // When the newest message that was written was handed out: it was heard then at the earliest.
  absl::Time said_ = absl::InfiniteFuture();
  absl::Time saying_ = absl::InfiniteFuture();  // Likewise, of the one that is being written.
  bool lapsed_ = false;
};

}  // namespace fsdpd
