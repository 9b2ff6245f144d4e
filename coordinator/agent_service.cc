// gRPC's end of an agent's stream. Down: one thread writes what others put into the outbox (the reconciler's
// launches and stops, rendezvous values, requests for logs). Up: the handler's own thread reads, and hands on
// to the session.
#include "coordinator/agent_service.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/strip.h>

#include <thread>

#include "base/check.h"
#include "base/ids.h"
#include "base/log.h"
#include "coordinator/errors.h"

namespace fsdpd {

grpc::Status AgentService::Attach(grpc::ServerContext* context, Stream* stream) {
  if (const absl::Status shown = parts_.gate->AskForCertificate(*context); !shown.ok()) {
    PutOnRecord(*context, "", shown);
    return ToGrpc(shown);
  }
  if (streams_.fetch_add(1) >= kMaxAgentStreams) {
    --streams_;
    return ToGrpc(
        absl::ResourceExhaustedError(absl::StrCat("more than ", kMaxAgentStreams, " agent streams")));
  }
  const absl::Status status = Serve(context, stream);
  --streams_;
  if (!status.ok()) LogWarning("agent stream ended peer=%s status=%s", context->peer(), status.ToString());
  return ToGrpc(status);
}

absl::Status AgentService::Serve(grpc::ServerContext* context, Stream* stream) {
  v1::AgentMessage first;
  if (!stream->Read(&first)) return absl::OkStatus();
  if (first.has_register_()) FSDPD_RETURN_IF_ERROR(Admit(context, first.register_().node()));
  const std::string address(absl::StripPrefix(context->peer(), "ipv4:"));
  FSDPD_ASSIGN_OR_RETURN(
      const std::unique_ptr<AgentSession> session,
      AgentSession::Open(parts_.session, first, address, [context] { context->TryCancel(); }));
  StreamOutbox* const outbox = session->outbox();
  std::thread writer([&] {
    v1::CoordinatorMessage message;
    while (outbox->Pop(&message)) {
      if (!stream->Write(message)) return outbox->Close();
    }
  });
  absl::Status status;
  v1::AgentMessage message;
  while (status.ok() && stream->Read(&message)) status = session->Take(&message);
  outbox->Release();
  writer.join();
  // An agent that stops ends its side; a connection that breaks cancels the call.
  session->Close(status.ok() && !context->IsCancelled());
  return status;
}

absl::Status AgentService::Admit(grpc::ServerContext* context, const std::string& node) {
  const absl::Status admitted = parts_.gate->AdmitNode(*context, node);
  PutOnRecord(*context, node, admitted);
  return admitted;
}

void AgentService::PutOnRecord(const grpc::ServerContext& context, const std::string& node,
                               const absl::Status& admitted) {
  if (parts_.audit == nullptr) return;
  AuditRecord record;
  record.time = parts_.clock->Wall();
  record.nobody = absl::IsUnauthenticated(admitted);
  if (admitted.ok() && !parts_.gate->open()) {
    record.who = node;
    record.role = "node";
  }
  record.from = context.peer();
  record.method = "Attach";
  record.object = node.empty() || CheckNodeName(node).ok() ? node : "(no node's name)";
  record.outcome = absl::StatusCodeToString(admitted.code());
  parts_.audit->Write(record);
}

}  // namespace fsdpd
