// The coordinator's end of an agent's stream. Down: one thread writes what others put into the outbox (the
// reconciler's launches and stops, rendezvous values, requests for logs). Up: the handler's own thread reads,
// and hands on to the reconciler, the rendezvous or the log relay.
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
  if (!first.has_register_())
    return absl::InvalidArgumentError("the first message of a stream must be Register");
  const v1::Register& info = first.register_();
  FSDPD_RETURN_IF_ERROR(Admit(context, info.node()));
  const std::string address(absl::StripPrefix(context->peer(), "ipv4:"));
  FSDPD_ASSIGN_OR_RETURN(const std::shared_ptr<StreamOutbox> outbox,
                         parts_.nodes->Attach(info, address, [context] { context->TryCancel(); }));
  parts_.logs->NodeGone(info.node());  // What the stream before was asked for is lost.
  parts_.reconciler->Attached(info, outbox->epoch());

  std::thread writer([&] {
    v1::CoordinatorMessage message;
    while (outbox->Pop(&message)) {
      if (!stream->Write(message)) return outbox->Close();
    }
  });
  const absl::Status status = ReadAll(info.node(), outbox, stream);
  outbox->Release();
  writer.join();

  parts_.rendezvous->Forget(outbox->epoch());
  if (parts_.nodes->Detach(info.node(), outbox->epoch())) {
    parts_.logs->NodeGone(info.node());
    LogInfo("agent detached node=%s", info.node());
  }
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

absl::Status AgentService::ReadAll(const std::string& node, const std::shared_ptr<StreamOutbox>& outbox,
                                   Stream* stream) {
  v1::AgentMessage message;
  while (stream->Read(&message)) {
    if (message.epoch() != outbox->epoch()) {
      return absl::AbortedError(absl::StrCat("message of epoch ", message.epoch(), " on a stream of epoch ",
                                             outbox->epoch(), "; register again"));
    }
    parts_.nodes->Touch(node, outbox->epoch());
    FSDPD_RETURN_IF_ERROR(Handle(node, outbox, &message));
  }
  return absl::OkStatus();
}

absl::Status AgentService::Handle(const std::string& node, const std::shared_ptr<StreamOutbox>& outbox,
                                  v1::AgentMessage* message) {
  switch (message->body_case()) {
    case v1::AgentMessage::kHeartbeat:
      break;  // Touched already.
    case v1::AgentMessage::kRank:
      parts_.reconciler->Told(node, std::move(*message->mutable_rank()), message->sent_unix_nanos());
      break;
    case v1::AgentMessage::kStopped:
      parts_.reconciler->Told(node, message->stopped());
      break;
    case v1::AgentMessage::kLogs:
      parts_.logs->Take(node, message->logs());
      break;
    case v1::AgentMessage::kTraced:
      parts_.traces->Take(node, message->traced());
      break;
    case v1::AgentMessage::kRendezvousSet:
      SetKey(message->rendezvous_set());
      break;
    case v1::AgentMessage::kRendezvousGet:
      GetKey(message->rendezvous_get(), outbox);
      break;
    case v1::AgentMessage::kRegister:
      return absl::InvalidArgumentError("Register may only be the first message of a stream");
    case v1::AgentMessage::BODY_NOT_SET:
      // A newer agent's message: its loss would be silent.
      return absl::InvalidArgumentError("a message without a body that this coordinator knows");
  }
  return absl::OkStatus();
}

void AgentService::SetKey(const v1::RendezvousSet& set) {
  const AttemptRef ref = {set.job_id(), set.attempt()};
  const absl::Status status = parts_.rendezvous->Set(ref, set.key(), set.value());
  // Stale is no fault; a bad key or value is one of the attempt, whose ranks would wait for it in vain.
  if (status.ok() || absl::IsFailedPrecondition(status)) return;
  parts_.reconciler->Fault(ref, std::string(status.message()));
}

void AgentService::GetKey(const v1::RendezvousGet& get, const std::shared_ptr<StreamOutbox>& outbox) {
  const AttemptRef ref = {get.job_id(), get.attempt()};
  const auto answer = [outbox, request = get.request()](const std::string& value) {
    v1::CoordinatorMessage message;
    message.mutable_rendezvous_value()->set_request(request);
    message.mutable_rendezvous_value()->set_value(value);
    outbox->Push(std::move(message));
  };
  const absl::Status status = parts_.rendezvous->Get(ref, get.key(), outbox->epoch(), answer);
  if (status.ok() || absl::IsFailedPrecondition(status)) return;
  parts_.reconciler->Fault(ref, std::string(status.message()));
}

}  // namespace fsdpd
