// Coordinator side of one agent's stream, independent of the transport: registration, the effect of each
// message, the stream generation that it must carry, and the notifications when the stream ends. The owner
// transports the messages: gRPC in agent_service.h, a simulated network in tests/sim.
//
//   Open -> { Take, while outbox() is emptied into the stream } -> Close [-> Left]
//
// A message of another stream generation is ABORTED: it belongs to an earlier membership. After an error of
// Take the stream ends. Two kinds of invalid messages do not end the stream:
//   * A message about an attempt or a rank that the coordinator did not place on this node is rejected before
//     any other code sees it (attempt_hosts.h). It is logged once per kind, and counted.
//   * A message with a number out of bounds (agent_numbers.h) is dropped as a whole, and logged: an error of
//     one rank must not disconnect its node. An operation that waits for it fails with this error: an
//     attempt, a log read, or a preflight.
//
// Thread safety: calls may come from any thread, but one at a time; outbox() is thread-safe. Ownership:
// borrows everything in Parts.
#pragma once

#include <absl/status/statusor.h>

#include <functional>
#include <memory>
#include <set>
#include <string>

#include "coordinator/agents/log_relay.h"
#include "coordinator/agents/timeline_board.h"
#include "coordinator/agents/trace_relay.h"
#include "coordinator/attempt/rendezvous.h"
#include "coordinator/metrics/meters.h"
#include "coordinator/nodes/node_registry.h"
#include "coordinator/reconcile/reconciler.h"
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
    TimelineBoard* timelines;
    Meters* meters = nullptr;  // Null: no metrics.
  };

  // Opens a session with the first message of the stream, which must be Register. `end_stream` ends the
  // stream and may be called from any thread. Errors: those of NodeRegistry::Attach; INVALID_ARGUMENT for a
  // registration with too many attempts or invalid numbers.
  static absl::StatusOr<std::unique_ptr<AgentSession>> Open(const Parts& parts, const v1::AgentMessage& first,
                                                            const std::string& address,
                                                            std::function<void()> end_stream);
  absl::Status Take(v1::AgentMessage* message);
  // No message is taken after this call, and the outbox is no longer emptied.
  void Close();
  // The agent ended the stream cleanly; known once the agent has received the end of the stream.
  void Left();

  const std::string& node() const { return node_; }
  StreamOutbox* outbox() { return outbox_.get(); }

 private:
  AgentSession(const Parts& parts, std::string node, std::shared_ptr<StreamOutbox> outbox)
      : parts_(parts), node_(std::move(node)), outbox_(std::move(outbox)) {}
  void LogRejected(const v1::AgentMessage& message);
  void Drop(const v1::AgentMessage& message, const absl::Status& why);
  void SetKey(const v1::RendezvousSet& set);
  void GetKey(const v1::RendezvousGet& get);

  const Parts parts_;
  const std::string node_;
  const std::shared_ptr<StreamOutbox> outbox_;
  std::set<std::string> dropped_for_;  // Fields that were logged.
  std::set<std::string> refused_;      // Message kinds that were logged.
};

}  // namespace fsdpd
