// gRPC side of an agent's stream. Downstream: while the outbox has messages (launches and stops of the
// reconciler, rendezvous values, log requests), one is being written. Upstream: one message is being read or
// passed to the session.
#include "coordinator/agents/agent_service.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <absl/strings/strip.h>
#include <grpcpp/alarm.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/ids.h"
#include "base/log.h"
#include "base/mutex.h"
#include "coordinator/request/errors.h"

namespace fsdpd {
namespace {

constexpr absl::Duration kCheckCertificateEvery = absl::Seconds(1);

}  // namespace

// A caller of gRPC functions for this stream must hold a turn: the reader holds one from the first message to
// the last; the writer, from a message in the outbox until it is empty; a canceller, during the call. The
// last turn that is returned finishes the stream, because no gRPC function may be called after Finish(). An
// agent that does not read keeps the writer's turn until its lease ends or its stream is replaced: both
// cancel the call.
class AgentService::Stream final : public Reactor, public std::enable_shared_from_this<Stream> {
 public:
  Stream(AgentService* service, grpc::CallbackServerContext* context)
      : service_(service), context_(context) {}

  // Keeps itself alive until OnDone. `owner`: its place is released then; nullopt: it holds no place.
  void Begin(const absl::Status& let_in, std::optional<std::string> owner);

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnDone() override;

 private:
  void OnRegisterLimit();
  bool RegisteredInTime();
  absl::Status CheckCertificate();
  absl::Status OpenSession();
  void EndReading(absl::Status why);
  void Write();
  void WriteNext();
  void Cancel();
  bool TakeTurn();
  void ReturnTurn();
  void LogEnd(const absl::Status& end);

  enum class First { kAwaited, kCame, kLate };

  AgentService* const service_;
  grpc::CallbackServerContext* const context_;
  std::optional<std::string> owner_;
  grpc::Alarm register_limit_;
  std::shared_ptr<Stream> self_;           // Until gRPC is done with it.
  std::unique_ptr<AgentSession> session_;  // Created by the reader before anything is written.
  v1::AgentMessage incoming_;              // Owned by the reader.
  v1::CoordinatorMessage outgoing_;        // Owned by the writer.
  Mutex mutex_;
  int turns_ ABSL_GUARDED_BY(mutex_) = 1;                    // The reader holds the first one.
  First first_ ABSL_GUARDED_BY(mutex_) = First::kAwaited;    // State of the first message.
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mutex_);  // Set when reading is over.
  std::string serial_;                         // Serial number of its certificate; set before it is read.
  absl::Time checked_ = absl::InfinitePast();  // Last revocation check; owned by the reader.
  bool in_order_ = false;                      // On the coordinator's side; set before Finish().
};

void AgentService::Stream::Begin(const absl::Status& let_in, std::optional<std::string> owner) {
  self_ = shared_from_this();
  owner_ = std::move(owner);
  serial_ = service_->parts_.authorizer->SerialOf(*context_);
  if (!let_in.ok()) return EndReading(let_in);
  const std::weak_ptr<Stream> weak = weak_from_this();
  register_limit_.Set(std::chrono::system_clock::now() + absl::ToChronoSeconds(kRegisterWithin),
                      [weak](bool expired) {
                        const std::shared_ptr<Stream> stream = weak.lock();
                        if (expired && stream != nullptr) stream->OnRegisterLimit();
                      });
  StartRead(&incoming_);
}

// The read then fails, and OnReadDone() sends the reason.
void AgentService::Stream::OnRegisterLimit() {
  {
    MutexLock lock(&mutex_);
    if (first_ != First::kAwaited) return;
    first_ = First::kLate;
  }
  Cancel();
}

bool AgentService::Stream::RegisteredInTime() {
  register_limit_.Cancel();
  MutexLock lock(&mutex_);
  if (first_ == First::kLate) return false;
  first_ = First::kCame;
  return true;
}

void AgentService::Stream::OnReadDone(bool ok) {
  if (session_ == nullptr && !RegisteredInTime()) return EndReading(service_->RefuseLate(*context_, *owner_));
  if (!ok) return EndReading(absl::OkStatus());
  if (const absl::Status revoked = CheckCertificate(); !revoked.ok()) return EndReading(revoked);
  const absl::Status taken = session_ == nullptr ? OpenSession() : session_->Take(&incoming_);
  if (!taken.ok()) return EndReading(taken);
  StartRead(&incoming_);
}

// Agents send a message every few seconds; otherwise the lease ends the stream (agent_lease.h).
absl::Status AgentService::Stream::CheckCertificate() {
  const absl::Time now = service_->parts_.clock->Now();
  if (serial_.empty() || now - checked_ < kCheckCertificateEvery) return absl::OkStatus();
  checked_ = now;
  const absl::Status valid = service_->parts_.authorizer->CheckNotRevoked(serial_);
  if (valid.ok()) return valid;
  if (session_ == nullptr) {
    service_->TakeRevoked(*context_, service_->parts_.authorizer->NodeOf(*context_), 0, valid);
  } else {
    service_->TakeRevoked(*context_, session_->node(), session_->outbox()->stream_generation(), valid);
  }
  return valid;
}

absl::Status AgentService::Stream::OpenSession() {
  if (incoming_.has_register_())
    FSDPD_RETURN_IF_ERROR(service_->Admit(*context_, incoming_.register_().node()));
  const std::string address(absl::StripPrefix(context_->peer(), "ipv4:"));
  const std::weak_ptr<Stream> weak = weak_from_this();
  FSDPD_ASSIGN_OR_RETURN(session_, AgentSession::Open(service_->parts_.session, incoming_, address, [weak] {
                           if (const std::shared_ptr<Stream> stream = weak.lock()) stream->Cancel();
                         }));
  session_->outbox()->SetWriter([weak] {
    if (const std::shared_ptr<Stream> stream = weak.lock()) stream->Write();
  });
  Write();
  return absl::OkStatus();
}

void AgentService::Stream::EndReading(absl::Status why) {
  {
    MutexLock lock(&mutex_);
    end_ = std::move(why);
  }
  ReturnTurn();
}

void AgentService::Stream::Write() {
  if (TakeTurn()) WriteNext();
}

void AgentService::Stream::WriteNext() {
  bool over = false;  // Remaining messages have no receiver.
  {
    MutexLock lock(&mutex_);
    over = end_.has_value();
  }
  if (over || !session_->outbox()->TryPop(&outgoing_)) return ReturnTurn();
  StartWrite(&outgoing_);
}

void AgentService::Stream::OnWriteDone(bool ok) {
  if (ok) return WriteNext();
  session_->outbox()->Close();
  ReturnTurn();
}

void AgentService::Stream::Cancel() {
  if (!TakeTurn()) return;
  context_->TryCancel();
  ReturnTurn();
}

// Returns false if the stream is finished.
bool AgentService::Stream::TakeTurn() {
  MutexLock lock(&mutex_);
  if (turns_ == 0) return false;
  ++turns_;
  return true;
}

void AgentService::Stream::ReturnTurn() {
  absl::Status end;
  {
    MutexLock lock(&mutex_);
    if (--turns_ > 0) return;
    end = *end_;
  }
  if (session_ != nullptr) {
    session_->outbox()->Release();
    session_->Close();
  }
  in_order_ = end.ok();
  if (!end.ok()) LogEnd(end);
  Finish(ToGrpc(end));
}

// Rate-limited: an agent that is rejected retries every few seconds.
void AgentService::Stream::LogEnd(const absl::Status& end) {
  const std::string text = end.ToString(absl::StatusToStringMode::kWithNoExtraData);
  std::optional<int64_t> unlogged = 0;
  if (session_ == nullptr) unlogged = service_->refusals_.Report(text, service_->parts_.clock->Now());
  if (!unlogged.has_value()) return;
  const std::string repeats = *unlogged > 0 ? absl::StrCat(" unlogged_repeats=", *unlogged) : "";
  LogWarning("agent stream ended peer=%s status=%s%s", context_->peer(), text, repeats);
}

void AgentService::Stream::OnDone() {
  // An agent that stops closes its side; a broken connection cancels the call, which is only certain here.
  if (session_ != nullptr && in_order_ && !context_->IsCancelled()) session_->Left();
  if (owner_.has_value()) service_->stream_quota_.Release(*owner_);
  self_.reset();
}

AgentService::Reactor* AgentService::Attach(grpc::CallbackServerContext* context) {
  const auto stream = std::make_shared<Stream>(this, context);
  std::string owner;
  const absl::Status let_in = AdmitStream(*context, &owner);
  stream->Begin(let_in, let_in.ok() ? std::optional(owner) : std::nullopt);
  return stream.get();
}

absl::Status AgentService::AdmitStream(const grpc::CallbackServerContext& context, std::string* owner) {
  if (const absl::Status shown = parts_.authorizer->RequireCertificate(context); !shown.ok()) {
    if (parts_.authorizer->SerialOf(context).empty()) {
      RecordRegistration(context, "", shown);
    } else {  // It presented a certificate.
      TakeRevoked(context, parts_.authorizer->NodeOf(context), 0, shown);
    }
    return shown;
  }
  const absl::Status placed = TakePlace(context, owner);
  if (placed.ok()) return placed;
  CountRefused();
  RecordRegistration(context, *owner, placed);
  return placed;
}

absl::Status AgentService::TakePlace(const grpc::CallbackServerContext& context, std::string* owner) {
  if (parts_.authorizer->open()) return stream_quota_.Take(*owner, kMaxAgentStreams);
  const std::vector<std::string> names = parts_.authorizer->CertificateNamesOf(context);
  *owner = absl::StrJoin(names, ",");
  return stream_quota_.Take(*owner, kMaxStreamsPerNode * std::max<int>(1, names.size()));
}

absl::Status AgentService::RefuseLate(const grpc::CallbackServerContext& context, const std::string& owner) {
  const absl::Status late = absl::DeadlineExceededError(
      absl::StrCat("agent stream: no Register within ", absl::FormatDuration(kRegisterWithin)));
  CountRefused();
  RecordRegistration(context, owner, late);
  return late;
}

void AgentService::CountRefused() {
  if (parts_.session.meters != nullptr) parts_.session.meters->RefusedFromAgent("stream");
}

void AgentService::TakeRevoked(const grpc::CallbackServerContext& context, const std::string& node,
                               int64_t stream_generation, const absl::Status& refused) {
  if (parts_.session.meters != nullptr) parts_.session.meters->RefusedRevoked();
  const std::string serial = parts_.authorizer->SerialOf(context);
  parts_.session.nodes->SetRevoked(node, stream_generation, serial);
  RecordRegistration(context, node, refused, serial);
}

absl::Status AgentService::Admit(const grpc::CallbackServerContext& context, const std::string& node) {
  // The error repeats the name, and is logged.
  const absl::Status named = CheckNodeName(node);
  const absl::Status admitted =
      named.ok() ? parts_.authorizer->AdmitNode(context, node)
                 : absl::InvalidArgumentError(absl::StrCat("register.node: ", named.message()));
  RecordRegistration(context, node, admitted);
  return admitted;
}

void AgentService::RecordRegistration(const grpc::CallbackServerContext& context, const std::string& node,
                                      const absl::Status& admitted, const std::string& revoked_serial) {
  if (parts_.audit == nullptr) return;
  AuditRecord record;
  record.time = parts_.clock->Wall();
  record.unauthenticated = absl::IsUnauthenticated(admitted);
  if ((admitted.ok() && !parts_.authorizer->open()) || !revoked_serial.empty()) {
    record.who = node;
    record.role = "node";
  }
  record.revoked_serial = revoked_serial;
  record.from = context.peer();
  record.method = "Attach";
  record.object = node.empty() || CheckNodeName(node).ok() ? node : "(invalid node name)";
  record.outcome = absl::StatusCodeToString(admitted.code());
  parts_.audit->Write(record);
}

}  // namespace fsdpd
