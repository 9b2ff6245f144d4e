// What the agent's parts know of the way to the coordinator: what they hand to it, and what it hands to them.
// It is a gRPC stream (coordinator_link.h), or a simulated one (tests/sim).
#pragma once

#include <absl/status/status.h>

#include <vector>

#include "agent/attempt.h"
#include "proto/fsdpd/v1/agent.pb.h"

namespace fsdpd {

// outbox.h says what a lost stream does to each kind.
class Uplink {
 public:
  virtual ~Uplink() = default;
  virtual void SendLifecycle(v1::AgentMessage message) = 0;
  virtual void SendSaved(v1::AgentMessage message) = 0;
  virtual void SendStep(v1::AgentMessage message) = 0;
  virtual void SendRendezvous(v1::AgentMessage message) = 0;
  virtual void ForgetRendezvous(const AttemptId& attempt) = 0;

  // Of what was sent as lifecycle or saved: what the coordinator has not read, as far as is known.
  virtual std::vector<v1::AgentMessage> Undelivered() = 0;
  virtual bool attached() = 0;
};

// Called by one thread at a time; must not block on the link.
class UplinkHandler {
 public:
  virtual ~UplinkHandler() = default;
  virtual v1::Register Registration() = 0;  // As things are now.
  virtual void Connected(bool connected) = 0;
  virtual void Received(const v1::CoordinatorMessage& message) = 0;  // All but Welcome.
  virtual void Refused(const absl::Status& why) = 0;
  // The coordinator refused or ended a stream because this node's certificate is revoked; also repeatedly.
  virtual void Revoked() = 0;
};

}  // namespace fsdpd
