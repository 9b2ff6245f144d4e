// Interface between the components of an agent and its connection to the coordinator, in both directions.
// Implemented by a gRPC stream (coordinator_link.h) and a simulation (tests/sim).
#pragma once

#include <absl/status/status.h>

#include <vector>

#include "agent/launch/attempt.h"
#include "proto/fsdpd/v1/agent.pb.h"

namespace fsdpd {

// outbox.h defines what happens to each kind of message when a stream is lost.
class Uplink {
 public:
  virtual ~Uplink() = default;
  virtual void SendLifecycle(v1::AgentMessage message) = 0;
  virtual void SendSaved(v1::AgentMessage message) = 0;
  virtual void SendStep(v1::AgentMessage message) = 0;
  virtual void SendRendezvous(v1::AgentMessage message) = 0;
  virtual void ForgetRendezvous(const AttemptId& attempt) = 0;

  // Lifecycle and checkpoint messages that the coordinator has not read, as far as known.
  virtual std::vector<v1::AgentMessage> Undelivered() = 0;
  virtual bool attached() = 0;
};

// Called by one thread at a time; must not block on the link.
class UplinkHandler {
 public:
  virtual ~UplinkHandler() = default;
  virtual v1::Register Registration() = 0;  // The current state.
  virtual void Connected(bool connected) = 0;
  virtual void Received(const v1::CoordinatorMessage& message) = 0;  // All messages but Welcome.
  virtual void Refused(const absl::Status& why) = 0;
  // The coordinator rejected or ended a stream because the certificate of this node is revoked. May be called
  // repeatedly.
  virtual void Revoked() = 0;
};

}  // namespace fsdpd
