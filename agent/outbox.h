// What the agent still has to tell the coordinator, in order, across streams. It owns the decision what is
// kept when the coordinator is away and what a new stream carries again.
//
//   lifecycle   ready, exit, stopped   never dropped; sent again on every new stream until it has settled: 30
//                                      s on a stream that lived on while this process ran. A coordinator that
//                                      dies after it read an exit and before it stored it gets it again, so
//                                      receivers must take repeats. Its bound is has_room(): the owner takes
//                                      no new orders without it, and it is orders that it grows with.
//   saved       checkpoints            sent again like lifecycle: attempts are counted from the newest commit
//                                      that the coordinator has heard of. Of an attempt the newest
//                                      kMaxKnownCheckpoints of each kind, committed or failed, are kept, so
//                                      that training bounds them and failures push no commit out.
//   rendezvous  sets and gets          sent again on every new stream until forgotten; bounded per rank where
//                                      they come from (rendezvous_relay.h)
//   steps       reports, stands,       sent once; beyond `max_steps` the oldest are dropped and counted. A
//               words on traces,       course takes the place of one of its job that still waits: of 100 KB
//               courses                each, a stream that is away for long would leave too many
//   logs        log lines              belong to one stream and go with it
//
//   per stream: NewStream, then { Next -> write it -> Sent } until Next has nothing
//
// Thread safety: none; the owner locks.
#pragma once

#include <absl/time/time.h>

#include <cstdint>
#include <map>
#include <vector>

#include "agent/attempt.h"
#include "agent/own_time.h"
#include "base/limits.h"
#include "proto/fsdpd/v1/agent.pb.h"

namespace fsdpd {

class Outbox {
 public:
  // Two rounds of the largest order: to refuse a launch of kMaxWorld ranks is as many exits.
  static constexpr int kMaxLifecycle = 2 * kMaxWorld;

  explicit Outbox(int max_steps = kMaxBufferedReports, int max_lifecycle = kMaxLifecycle)
      : max_steps_(max_steps), max_lifecycle_(max_lifecycle) {}

  void AddLifecycle(v1::AgentMessage message) { Add(Kind::kLifecycle, std::move(message)); }
  void AddRendezvous(v1::AgentMessage message) { Add(Kind::kRendezvous, std::move(message)); }
  void AddSaved(v1::AgentMessage message);
  void AddStep(v1::AgentMessage message);
  void AddLogs(v1::AgentMessage message);

  void ForgetGet(int64_t request);                  // Its value has come.
  void ForgetRendezvous(const AttemptId& attempt);  // Nobody is left to use it.

  // The next message that this stream has not carried, with the ticket for Sent; false when there is none.
  bool Next(v1::AgentMessage* message, int64_t* ticket) const;
  void Sent(int64_t ticket, absl::Time now);

  void NewStream();
  void Settle(absl::Time now);  // Call at least every few seconds while the stream lives.

  // Lifecycle and checkpoints that no stream has carried, but for one that was lost. Without what the node
  // was measured to be: the coordinator would date it when it is told, and the next agent may have other
  // devices.
  std::vector<v1::AgentMessage> Undelivered() const;

  // Ranks whose exit a new stream will carry: the coordinator may not know yet that they are gone.
  std::vector<RankId> KeptExits() const;

  // Whether an order of the coordinator may be taken: its answers will be lifecycle messages.
  bool has_room() const { return waiting_lifecycle_ < max_lifecycle_; }

  int64_t dropped_steps() const { return dropped_steps_; }
  int waiting_logs() const { return waiting_logs_; }

 private:
  // Between two calls of Settle, which every heartbeat is.
  static constexpr absl::Duration kLongestTurn = absl::Milliseconds(kAgentLostAfterMs);

  enum class Kind { kLifecycle, kSaved, kRendezvous, kStep, kLogs };
  struct Entry {
    Kind kind;
    v1::AgentMessage message;
    absl::Time sent = absl::InfiniteFuture();  // On the present stream.
  };
  using Entries = std::map<int64_t, Entry>;

  void Add(Kind kind, v1::AgentMessage message);
  void DropCourse(const std::string& job_id);
  Entries::iterator Erase(Entries::iterator entry);

  const int max_steps_;
  const int max_lifecycle_;
  OwnTime own_time_{kLongestTurn};
  Entries entries_;  // By ticket, which is the order of arrival.
  int64_t next_ticket_ = 0;
  int64_t cursor_ = 0;  // Everything before it has been carried by this stream.
  int waiting_lifecycle_ = 0;
  int waiting_steps_ = 0;
  int waiting_logs_ = 0;
  int64_t dropped_steps_ = 0;
};

}  // namespace fsdpd
