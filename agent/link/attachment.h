// State machine of the agent's side of the coordinator protocol, without the stream and its threads: the
// first message of a stream, which messages of the coordinator are accepted, which message is sent next and
// when, and what happens when the stream is lost. The owner moves the messages: gRPC in coordinator_link.h, a
// simulated network in tests/sim.
//
//   Begin -> write its result
//         -> { Check -> Welcome, once, or Take ... | Next -> write its result -> Written }
//         -> End
//
// An agent that was suspended may find orders in its socket that are no longer valid, such as a Launch from
// before the coordinator declared it lost and moved its jobs. So a stream on which nothing was sent for
// kLease has lapsed (Lapsed), and all messages still unread on it are discarded. The next stream registers
// what this agent hosts, and the coordinator sends its orders again.
//
// Not thread-safe; the owner locks.
#pragma once

#include <absl/status/status.h>
#include <absl/time/time.h>

#include <algorithm>
#include <cstdint>

#include "agent/link/outbox.h"
#include "base/clock.h"
#include "base/limits.h"
#include "proto/fsdpd/v1/agent.pb.h"

namespace fsdpd {

class Attachment {
 public:
  // `clock` must outlive this object. `fenced`: several coordinators share one state, so generations never
  // decrease. The generation of a single coordinator may decrease, for example if its state was restored from
  // a backup.
  explicit Attachment(Clock* clock, int max_lifecycle = Outbox::kMaxLifecycle, bool fenced = false)
      : clock_(clock), fenced_(fenced), outbox_(kMaxBufferedReports, max_lifecycle) {}

  // Longest time without a message sent on a stream. It is below AgentLease::kLostAfter, and the coordinator
  // starts counting later, when it receives a message. If a coordinator asks for less frequent heartbeats,
  // the lease is three of its intervals.
  static constexpr absl::Duration kLease = absl::Milliseconds(kAgentLostAfterMs - 500);
  static constexpr char kLapsedMessage[] = "lease expired: the coordinator may have declared this agent lost";

  Outbox& outbox() { return outbox_; }

  // Starts a new stream and returns its first message: `registration`, with the ranks added whose exits are
  // still queued. They count as hosted, because their exit message must be what ends them.
  v1::AgentMessage Begin(v1::Register registration);

  // Checks `message` against the protocol: the first message is a Welcome with a generation, and all others
  // carry this generation. If fenced, rejects a coordinator with an older generation than one seen before.
  // CANCELLED if the stream has lapsed. After an error, end the stream.
  absl::Status Check(const v1::CoordinatorMessage& message) const;
  // REQUIRES: Check() was OK. Call Welcome for the first message and Take for every other one, before acting
  // on it.
  void Welcome(const v1::CoordinatorMessage& message);
  void Take(const v1::CoordinatorMessage& message);
  // Orders must wait while MayTakeOrders() is false: the outbox is full of results of earlier orders.
  static bool IsOrder(const v1::CoordinatorMessage& message) {
    return message.has_launch() || message.has_stop();
  }
  bool MayTakeOrders() const { return outbox_.has_room(); }

  // Returns the message to write now and its ticket for Written (-1: a heartbeat). False if there is nothing
  // to write until a message is added or due() is reached.
  bool Next(v1::AgentMessage* message, int64_t* ticket);
  void Written(int64_t ticket);
  absl::Time due() const { return due_; }  // Next heartbeat, or the Welcome deadline.
  bool Overdue() const { return !welcomed_ && clock_->Now() >= due_; }
  // Whether no message was sent on the stream for kLease. It stays true until End(). After waiting to take an
  // order, check it again.
  bool Lapsed() const { return LapsedBy(clock_->Now()); }

  // The stream has ended. `in_order`: the coordinator has read everything that was written.
  void End(bool in_order);

  bool welcomed() const { return welcomed_; }  // On the current stream.
  int64_t stream_generation() const { return stream_generation_; }
  // Whether `status` makes retries useless: the first registration was rejected, and not for lack of capacity
  // or time.
  bool RefusedForGood(const absl::Status& status) const;

 private:
  bool LapsedBy(absl::Time now) const {
    return lapsed_ || now - last_sent_ > std::max(kLease, 3 * heartbeat_interval_);
  }

  Clock* const clock_;
  const bool fenced_;
  Outbox outbox_;
  int64_t stream_generation_ = 0;
  int64_t newest_generation_ = 0;  // Highest generation of any Welcome.
  bool welcomed_ = false;
  bool ever_welcomed_ = false;
  absl::Duration heartbeat_interval_ = absl::Milliseconds(kHeartbeatIntervalMs);
  absl::Time due_ = absl::InfiniteFuture();
  // When Next() returned the newest message that was written: the coordinator cannot have received it
  // earlier.
  absl::Time last_sent_ = absl::InfiniteFuture();
  absl::Time sending_since_ = absl::InfiniteFuture();  // The same for the message that is being written.
  bool lapsed_ = false;
};

}  // namespace fsdpd
