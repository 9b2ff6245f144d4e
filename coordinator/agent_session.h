// One agent's stream as the coordinator takes it, without the stream: whether it is let in, what each of its
// messages leads to, which epoch it must bear, and who hears of its end. What carries the messages is its
// owner's: gRPC in agent_service.h, a simulated network in tests/sim.
//
//   Open -> { Take, while outbox() is emptied into the stream } -> Close [-> Left]
//
// A message with another epoch than the stream's is ABORTED: it belongs to a membership that is over.
// After an error of Take the stream ends. A message about an attempt or a rank that the coordinator did
// not place on the stream's node is refused before any other code sees it (attempt_hosts.h): it is logged
// once per kind and counted, and the stream stays open. One with a number out of its bounds
// (agent_numbers.h) is dropped whole, and the log says so: agents say again on the next stream what may be
// lost with one, and for what a rank says its node is not given up. What somebody would wait for in vain
// then ends with the fault: an attempt, the reading of a log, the measurement of a node.
//
// Thread safety: one call after the other, from any thread; outbox() is thread-safe. Ownership: borrows
// everything in Parts.
#pragma once

#include <absl/status/statusor.h>

#include <functional>
#include <memory>
#include <set>
#include <string>

#include "coordinator/course_board.h"
#include "coordinator/log_relay.h"
#include "coordinator/meters.h"
#include "coordinator/node_registry.h"
#include "coordinator/reconciler.h"
#include "coordinator/rendezvous.h"
#include "coordinator/trace_relay.h"
#include "proto/fsdpd/v1/agent.pb.h"

namespace fsdpd {

class AgentSession {
 public:
  struct Parts {
    NodeRegistry* nodes;
    Reconciler* reconciler;
    Rendezvous* rendezvous;
    LogRelay* logs;
    TraceRelay* traces;
    CourseBoard* courses;
    Meters* meters = nullptr;  // Null where nobody scrapes.
  };

  // By the stream's first message, which must be Register. `end_stream` ends it, from any thread. Errors:
  // NodeRegistry::Attach's; INVALID_ARGUMENT for a registration with too many attempts or invalid numbers.
  static absl::StatusOr<std::unique_ptr<AgentSession>> Open(const Parts& parts, const v1::AgentMessage& first,
                                                            const std::string& address,
                                                            std::function<void()> end_stream);
  absl::Status Take(v1::AgentMessage* message);
  // Nothing more is taken, and nobody empties the outbox any more.
  void Close();
  // The agent had ended the stream in order, as is known once it has been told of its end.
  void Left();

  const std::string& node() const { return node_; }
  StreamOutbox* outbox() { return outbox_.get(); }

 private:
  AgentSession(const Parts& parts, std::string node, std::shared_ptr<StreamOutbox> outbox)
      : parts_(parts), node_(std::move(node)), outbox_(std::move(outbox)) {}
  void SayRefused(const v1::AgentMessage& message);
  void Drop(const v1::AgentMessage& message, const absl::Status& why);
  void SetKey(const v1::RendezvousSet& set);
  void GetKey(const v1::RendezvousGet& get);

  const Parts parts_;
  const std::string node_;
  const std::shared_ptr<StreamOutbox> outbox_;
  std::set<std::string> dropped_for_;  // Fields of which the log has told.
  std::set<std::string> refused_;      // Kinds of which the log has.
};

}  // namespace fsdpd
