// AgentLink: one stream per agent, carried over gRPC: who may open it, and the threads. The handler's thread
// reads and hands on; a second thread writes what others put into the stream's outbox. What messages mean is
// agent_session.h's.
//
// Thread-safe. Ownership: borrows everything in Parts.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "base/clock.h"
#include "coordinator/agent_session.h"
#include "coordinator/audit_log.h"
#include "coordinator/gate.h"
#include "proto/fsdpd/v1/agent.grpc.pb.h"

namespace fsdpd {

// Two threads each: DESIGN's 2,000 agents, and some that are about to notice that their stream is dead.
constexpr int kMaxAgentStreams = 2200;

class AgentService final : public v1::AgentLink::Service {
 public:
  struct Parts {
    AgentSession::Parts session;
    const Gate* gate;
    AuditLog* audit;  // Null where no record is kept.
    const Clock* clock;
  };
  using Stream = grpc::ServerReaderWriter<v1::CoordinatorMessage, v1::AgentMessage>;

  explicit AgentService(Parts parts) : parts_(parts) {}

  grpc::Status Attach(grpc::ServerContext* context, Stream* stream) override;

 private:
  absl::Status Serve(grpc::ServerContext* context, Stream* stream);
  absl::Status Admit(grpc::ServerContext* context, const std::string& node);
  // `node`: as it says; empty before it has said so.
  void PutOnRecord(const grpc::ServerContext& context, const std::string& node, const absl::Status& admitted);

  const Parts parts_;
  std::atomic<int> streams_{0};
};

}  // namespace fsdpd
