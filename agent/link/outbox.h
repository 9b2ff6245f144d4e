// Queue of messages from the agent to the coordinator, in order, across streams. It owns which messages are
// retained while the coordinator is unreachable and which of them a new stream carries again:
//
//   lifecycle   ready, exit, stopped  Never dropped. Resent on every new stream until settled: 30 s after it
//                                     was sent on a stream that stayed up while this process was running. A
//                                     coordinator that reads an exit and crashes before storing it gets it
//                                     again, so receivers must handle duplicates. Bounded by has_room():
//                                     while it is false, the owner accepts no new commands, which
//                                     cause these messages.
//   saved       checkpoints           Resent like lifecycle: the coordinator counts attempts from the newest
//                                     committed checkpoint that it knows of. Per attempt, the newest
//                                     kMaxKnownCheckpoints of each kind (committed, failed) are retained, so
//                                     that failures do not displace commits.
//   rendezvous  sets and gets         Resent on every new stream until forgotten. Bounded per rank by their
//                                     source (rendezvous_relay.h).
//   steps       reports, positions,   Sent once. Beyond `max_steps` the oldest are dropped and counted. A
//               trace results,        step timeline replaces a waiting one of the same job: they have
//               step timelines        about 100 KB each.
//   logs        log lines             Belong to one stream and are dropped with it.
//
//   per stream: NewStream, then { Next -> write it -> Sent } until Next returns false
//
// Not thread-safe; the owner locks.
#pragma once

#include <absl/time/time.h>

#include <cstdint>
#include <map>
#include <vector>

#include "agent/hang/suspension_watch.h"
#include "agent/launch/attempt.h"
#include "base/limits.h"
#include "proto/fsdpd/v1/agent.pb.h"

namespace fsdpd {

class Outbox {
 public:
  // Results of two of the largest orders: refusing a launch of kMaxWorld ranks creates that many exits.
  static constexpr int kMaxLifecycle = 2 * kMaxWorld;

  explicit Outbox(int max_steps = kMaxBufferedReports, int max_lifecycle = kMaxLifecycle)
      : max_steps_(max_steps), max_lifecycle_(max_lifecycle) {}

  void AddLifecycle(v1::AgentMessage message) { Add(Kind::kLifecycle, std::move(message)); }
  void AddRendezvous(v1::AgentMessage message) { Add(Kind::kRendezvous, std::move(message)); }
  void AddSaved(v1::AgentMessage message);
  void AddStep(v1::AgentMessage message);
  void AddLogs(v1::AgentMessage message);

  void ForgetGet(int64_t request);                  // The value has arrived.
  void ForgetRendezvous(const AttemptId& attempt);  // All ranks of the attempt are gone.

  // Returns the next message that this stream has not carried, with its ticket for Sent; false if there is
  // none.
  bool Next(v1::AgentMessage* message, int64_t* ticket) const;
  void Sent(int64_t ticket, absl::Time now);

  void NewStream();
  void Settle(absl::Time now);  // Call at least every few seconds while the stream is up.

  // Lifecycle and checkpoint messages that no stream has carried, or only a lost one. Excludes preflight
  // results: the coordinator would date them at their arrival, and the next agent may have other devices.
  std::vector<v1::AgentMessage> Undelivered() const;

  // Ranks whose exit the new stream will carry: the coordinator may still consider them running.
  std::vector<RankId> RetainedExits() const;

  // Whether another order may be accepted; its results will be lifecycle messages.
  bool has_room() const { return waiting_lifecycle_ < max_lifecycle_; }

  int64_t dropped_steps() const { return dropped_steps_; }
  int waiting_logs() const { return waiting_logs_; }

 private:
  // Longest expected time between two calls of Settle(), which every heartbeat makes.
  static constexpr absl::Duration kMaxIteration = absl::Milliseconds(kAgentLostAfterMs);

  enum class Kind { kLifecycle, kSaved, kRendezvous, kStep, kLogs };
  struct Entry {
    Kind kind;
    v1::AgentMessage message;
    absl::Time sent = absl::InfiniteFuture();  // On the current stream.
  };
  using Entries = std::map<int64_t, Entry>;

  void Add(Kind kind, v1::AgentMessage message);
  void DropTimeline(const std::string& job_id);
  Entries::iterator Erase(Entries::iterator entry);

  const int max_steps_;
  const int max_lifecycle_;
  SuspensionWatch suspensions_{kMaxIteration};
  Entries entries_;  // By ticket, in order of arrival.
  int64_t next_ticket_ = 0;
  int64_t cursor_ = 0;  // Tickets below were carried by this stream.
  int waiting_lifecycle_ = 0;
  int waiting_steps_ = 0;
  int waiting_logs_ = 0;
  int64_t dropped_steps_ = 0;
};

}  // namespace fsdpd
