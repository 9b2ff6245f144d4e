// gRPC service AgentLink, one stream per agent: admission of streams, and reading and writing of messages.
// The meaning of messages is in agent_session.h.
//
// The few threads of gRPC serve all streams. Handlers must not block, except on the reconciler's queue when
// it is full: then all agents must slow down.
//
// Thread-safe. Borrows everything in Parts. Streams end with the server's Shutdown(); destroy this object
// afterwards.
#pragma once

#include <grpcpp/grpcpp.h>

#include <string>

#include "base/clock.h"
#include "base/repeats.h"
#include "coordinator/access/audit_log.h"
#include "coordinator/access/authorizer.h"
#include "coordinator/agents/agent_session.h"
#include "coordinator/agents/stream_quota.h"
#include "proto/fsdpd/v1/agent.grpc.pb.h"

namespace fsdpd {

// An agent registers immediately. A stream without a registration is closed by this limit only.
constexpr absl::Duration kRegisterWithin = absl::Seconds(8);
static_assert(kRegisterWithin < absl::Seconds(10),
              "docs/deploy.md: when streams of a revoked certificate end");

class AgentService final : public v1::AgentLink::CallbackService {
 public:
  struct Parts {
    AgentSession::Parts session;
    const Authorizer* authorizer;
    AuditLog* audit;  // Null: no audit log.
    const Clock* clock;
  };
  using Reactor = grpc::ServerBidiReactor<v1::AgentMessage, v1::CoordinatorMessage>;

  explicit AgentService(Parts parts) : parts_(parts) {}

  Reactor* Attach(grpc::CallbackServerContext* context) override;

 private:
  class Stream;
  // Checks before the first message. If OK, the stream counts against the quota of `owner` (stream_quota.h).
  absl::Status AdmitStream(const grpc::CallbackServerContext& context, std::string* owner);
  absl::Status TakePlace(const grpc::CallbackServerContext& context, std::string* owner);
  // Rejects a stream that did not register in time.
  absl::Status RefuseLate(const grpc::CallbackServerContext& context, const std::string& owner);
  void CountRefused();
  // Records a stream that was rejected (`stream_generation` 0) or ended because its certificate is revoked.
  void TakeRevoked(const grpc::CallbackServerContext& context, const std::string& node,
                   int64_t stream_generation, const absl::Status& refused);
  absl::Status Admit(const grpc::CallbackServerContext& context, const std::string& node);
  // `node`: the claimed name; empty before the registration.
  void RecordRegistration(const grpc::CallbackServerContext& context, const std::string& node,
                          const absl::Status& admitted, const std::string& revoked_serial = "");

  const Parts parts_;
  StreamQuota stream_quota_;
  Repeats refusals_;
};

}  // namespace fsdpd
