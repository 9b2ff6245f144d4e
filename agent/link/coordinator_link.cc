#include "agent/link/coordinator_link.h"

#include <absl/strings/str_cat.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <utility>

#include "agent/link/backoff.h"
#include "base/log.h"
#include "base/net/address.h"
#include "base/process/error_line.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"

namespace fsdpd {
namespace {

constexpr absl::Duration kFirstRetry = absl::Milliseconds(100);
constexpr absl::Duration kLastRetry = absl::Seconds(3);
constexpr absl::Duration kLastRetryOfSeveral = absl::Seconds(1);  // A new leader is elected soon.
constexpr absl::Duration kConnectTimeout = absl::Seconds(3);
constexpr auto kConnectSlice = std::chrono::milliseconds(100);  // Upper bound of the delay of a shutdown.
constexpr absl::Duration kEndTimeout = absl::Seconds(2);
// Error ids that change what the agent does or logs.
constexpr char kRevoked[] = "REVOKED_CERTIFICATE";
constexpr char kNotLeader[] = "NOT_LEADER";
constexpr char kIdPayload[] = "fsdpd/error_id";
constexpr int kMaxWaitingLogs = 16;  // Messages of up to 256 KiB.

std::chrono::nanoseconds UntilFrom(absl::Time when, absl::Time now) {
  return absl::ToChronoNanoseconds(std::clamp(when - now, absl::ZeroDuration(), absl::Seconds(1)));
}

bool HasId(const absl::Status& status, const char* id) { return status.GetPayload(kIdPayload) == id; }

// `text` with the error id of `status`, if the coordinator sent one.
std::string WithIdOf(const absl::Status& status, absl::string_view text) {
  const auto id = status.GetPayload(kIdPayload);
  return id.has_value() ? WithErrorId(text, std::string(*id)) : std::string(text);
}

// A status of the coordinator, with the reason of its ErrorInfo detail as payload.
absl::Status FromGrpc(const grpc::Status& wire) {
  absl::Status status(static_cast<absl::StatusCode>(wire.error_code()), wire.error_message());
  google::rpc::Status details;
  google::rpc::ErrorInfo info;
  if (!details.ParseFromString(wire.error_details())) return status;
  for (const auto& detail : details.details())
    if (detail.UnpackTo(&info)) status.SetPayload(kIdPayload, absl::Cord(info.reason()));
  return status;
}

}  // namespace

// State of one stream. Guarded by the mutex of the link, except `context` and `stream`, which are
// thread-safe.
struct CoordinatorLink::Session {
  std::string address;
  grpc::ClientContext context;
  std::unique_ptr<Stream> stream;
  bool registered = false;  // Write() of the registration has returned, so WritesDone() may be called.
  bool read_ended = false;
  bool write_ended = false;
};

CoordinatorLink::CoordinatorLink(const std::string& addresses, Handler* handler, Clock* clock, TlsFiles tls,
                                 int max_lifecycle)
    : own_tls_(tls.given() ? OwnTls::kCertificate : OwnTls::kNone),
      handler_(handler),
      clock_(clock),
      attachment_(clock_, max_lifecycle, /*fenced=*/ParseAddresses(addresses)->size() > 1) {
  const std::vector<std::string> parsed = *ParseAddresses(addresses);
  for (const std::string& address : parsed)
    coordinators_.push_back({address, CoordinatorChannel(address, tls, clock), ""});
}

CoordinatorLink::~CoordinatorLink() { Shutdown(absl::ZeroDuration()); }

void CoordinatorLink::Start() {
  thread_ = std::thread([this] { Run(); });
}

bool CoordinatorLink::IsRegistering() const { return session_ != nullptr && !session_->registered; }

void CoordinatorLink::Shutdown(absl::Duration flush) {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
    flush_until_ = clock_->Now() + flush;
    changed_.SignalAll();
    // Writing a registration is fast. If it is stuck, WritesDone() would be too, so cancel the stream
    // instead.
    const absl::Time until = clock_->Now() + kEndTimeout;
    for (absl::Time now = clock_->Now(); IsRegistering() && now < until; now = clock_->Now())
      changed_.WaitFor(&mutex_, UntilFrom(until, now));
    if (IsRegistering()) session_->context.TryCancel();
  }
  if (thread_.joinable()) thread_.join();
}

void CoordinatorLink::Send(void (Outbox::*add)(v1::AgentMessage), v1::AgentMessage message) {
  MutexLock lock(&mutex_);
  (attachment_.outbox().*add)(std::move(message));
  changed_.SignalAll();
}

bool CoordinatorLink::SendLogs(v1::LogLines lines) {
  MutexLock lock(&mutex_);
  const int64_t stream = streams_;
  const auto is_streaming = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return attached_ && streams_ == stream && !stopping_;
  };
  while (is_streaming() && attachment_.outbox().waiting_logs() >= kMaxWaitingLogs) changed_.Wait(&mutex_);
  if (!is_streaming()) return false;
  v1::AgentMessage message;
  *message.mutable_logs() = std::move(lines);
  attachment_.outbox().AddLogs(std::move(message));
  changed_.SignalAll();
  return true;
}

void CoordinatorLink::ForgetRendezvous(const AttemptId& attempt) {
  MutexLock lock(&mutex_);
  attachment_.outbox().ForgetRendezvous(attempt);
}

std::vector<v1::AgentMessage> CoordinatorLink::Undelivered() {
  MutexLock lock(&mutex_);
  return attachment_.outbox().Undelivered();
}

bool CoordinatorLink::attached() {
  MutexLock lock(&mutex_);
  return attached_;
}

void CoordinatorLink::Run() {
  Backoff backoff(kFirstRetry, kLastRetry, std::random_device()());
  absl::Duration wait = absl::ZeroDuration();
  size_t first = 0;  // Coordinator at which the current round started.
  // Each iteration is one attempt to reach one coordinator. With several of them, `continue` skips the wait
  // (the loop condition then waits for zero) until a whole round has failed.
  do {
    bool reached = false;
    const absl::StatusOr<std::shared_ptr<grpc::Channel>> channel = coordinators_[current_].channel.Current();
    if (channel.ok()) reached = AwaitChannel(channel->get());
    const absl::Status status = channel.ok() ? RunStream(*channel) : channel.status();
    bool attached = false, refused = false;
    {
      MutexLock lock(&mutex_);
      attached = std::exchange(attached_, false);
      if (stopping_) break;
      refused = attachment_.RefusedForGood(status);
    }
    if (attached) {
      handler_->Connected(false);
      backoff.Reset();
      for (Coordinator& coordinator : coordinators_) coordinator.last_reason.clear();
      first = current_;
    }
    if (refused) return handler_->Refused(absl::Status(status.code(), WithIdOf(status, status.message())));
    if (HasId(status, kRevoked)) handler_->Revoked();
    LogReason(status, attached);
    if (!reached && IsUnknownName(status.message())) coordinators_[current_].channel.Renew();
    current_ = (current_ + 1) % coordinators_.size();
    if (coordinators_.size() > 1 && current_ != first) continue;
    wait = reached ? backoff.Next() : kFirstRetry;  // AwaitChannel() has waited for an unreachable one.
    if (coordinators_.size() > 1) wait = std::min(wait, kLastRetryOfSeveral);
  } while (WaitBeforeRetry(std::exchange(wait, absl::ZeroDuration())));
  handler_->Connected(false);
}

// Logs each reason once: a coordinator that is unreachable for an hour costs one line.
void CoordinatorLink::LogReason(const absl::Status& status, bool attached) {
  std::string words = status.ToString(absl::StatusToStringMode::kWithNoExtraData);
  // A likely cause is added to a failed connection, but not to a stream that broke.
  if (absl::IsUnavailable(status))
    words = attached ? std::string(status.message()) : ConnectErrorText(status.message(), own_tls_);
  if (coordinators_.size() == 1 && HasId(status, kNotLeader))
    absl::StrAppend(&words, "; set --coordinator to the addresses of all coordinators (HOST:PORT,HOST:PORT)");
  words = WithIdOf(status, words);
  Coordinator& coordinator = coordinators_[current_];
  if (std::exchange(coordinator.last_reason, words) == words) return;
  // A server that answers but does not match (TLS, protocol) needs a change by the user.
  if (attached || NothingListens(words) || !absl::IsUnavailable(status)) {
    LogWarning("not connected to coordinator, will retry coordinator=%s reason=%s", coordinator.address,
               words);
  } else {
    LogWarning("cannot connect to coordinator, will retry coordinator=%s reason=%s", coordinator.address,
               words);
  }
}

bool CoordinatorLink::WaitBeforeRetry(absl::Duration wait) {
  const absl::Time until = clock_->Now() + wait;
  MutexLock lock(&mutex_);
  for (absl::Time now = clock_->Now(); !stopping_ && now < until; now = clock_->Now()) {
    changed_.WaitFor(&mutex_, UntilFrom(until, now));
  }
  return !stopping_;
}

// An RPC on a channel in TRANSIENT_FAILURE fails immediately and costs a whole backoff, so wait for the
// channel first. If it does not connect in time, the RPC that follows returns the reason.
bool CoordinatorLink::AwaitChannel(grpc::Channel* channel) {
  const absl::Time until = clock_->Now() + kConnectTimeout;
  while (clock_->Now() < until) {
    if (channel->WaitForConnected(std::chrono::system_clock::now() + kConnectSlice)) return true;
    MutexLock lock(&mutex_);
    if (stopping_) break;
  }
  return false;
}

absl::Status CoordinatorLink::RunStream(const std::shared_ptr<grpc::Channel>& channel) {
  const std::unique_ptr<v1::AgentLink::Stub> stub = v1::AgentLink::NewStub(channel);
  v1::Register info = handler_->Registration();
  v1::AgentMessage registration;
  Session session;
  session.address = coordinators_[current_].address;
  {
    MutexLock lock(&mutex_);
    if (stopping_) return absl::CancelledError("the agent is stopping");
    session_ = &session;
    ++streams_;
    registration = attachment_.Begin(std::move(info));
  }
  session.stream = stub->Attach(&session.context);  // Blocks until connected.
  // If this fails, Read() fails too and Finish() returns the reason.
  session.stream->Write(registration);
  {
    MutexLock lock(&mutex_);
    session.registered = true;
    changed_.SignalAll();
  }
  std::thread reader([this, &session] { ReadAll(&session); });
  WriteAll(&session);
  AwaitEnd(&session);
  reader.join();
  const grpc::Status status = session.stream->Finish();
  bool lapsed = false;
  {
    MutexLock lock(&mutex_);
    session_ = nullptr;
    lapsed = attachment_.welcomed() && attachment_.Lapsed();
    attachment_.End(/*in_order=*/stopping_ && status.ok());
  }
  changed_.SignalAll();
  if (lapsed) return absl::CancelledError(Attachment::kLapsedMessage);
  if (status.ok()) return absl::UnavailableError("the coordinator ended the stream");
  return FromGrpc(status);
}

void CoordinatorLink::ReadAll(Session* session) {
  v1::CoordinatorMessage message;
  while (session->stream->Read(&message)) {
    if (Take(session, message)) continue;
    session->context.TryCancel();
    break;
  }
  MutexLock lock(&mutex_);
  session->read_ended = true;
  changed_.SignalAll();
}

// False if the coordinator violated the protocol or the stream has lapsed.
bool CoordinatorLink::Take(Session* session, const v1::CoordinatorMessage& message) {
  bool first = false;
  absl::Status checked;
  {
    MutexLock lock(&mutex_);
    first = !attachment_.welcomed();
    checked = attachment_.Check(message);
    if (checked.ok() && !first) attachment_.Take(message);
  }
  if (!checked.ok()) {
    if (!absl::IsCancelled(checked)) LogError("%s", checked.message());
    return false;
  }
  if (first) {
    LogInfo("attached coordinator=%s generation=%d", session->address, message.stream_generation());
    handler_->Connected(true);
    MutexLock lock(&mutex_);
    attachment_.Welcome(message);
    attached_ = true;
    changed_.SignalAll();
    return true;
  }
  if (Attachment::IsOrder(message) && !AwaitCapacity(session)) return false;
  handler_->Received(message);
  return true;
}

// False if the stream ended meanwhile: the coordinator decides about its orders again on the next stream.
bool CoordinatorLink::AwaitCapacity(Session* session) {
  MutexLock lock(&mutex_);
  if (attachment_.MayTakeOrders()) return true;
  LogWarning("outbox is full; paused reading orders of the coordinator");
  while (!attachment_.MayTakeOrders() && !session->write_ended) changed_.Wait(&mutex_);
  return !session->write_ended && !attachment_.Lapsed();
}

void CoordinatorLink::WriteAll(Session* session) {
  v1::AgentMessage message;
  int64_t ticket = -1;
  while (NextToWrite(session, &message, &ticket)) {
    if (!session->stream->Write(message)) return;
    MutexLock lock(&mutex_);
    attachment_.Written(ticket);
    changed_.SignalAll();  // Wakes SendLogs().
  }
}

// Waits for a message of the outbox or for the next heartbeat (ticket -1). False if there is nothing more to
// write.
bool CoordinatorLink::NextToWrite(Session* session, v1::AgentMessage* message, int64_t* ticket) {
  MutexLock lock(&mutex_);
  while (!session->read_ended) {
    const absl::Time now = clock_->Now();
    if (attachment_.welcomed()) {
      if (attachment_.Lapsed()) {
        session->context.TryCancel();
        return false;
      }
      if (stopping_ && now >= flush_until_) return false;
      if (attachment_.Next(message, ticket) && (*ticket >= 0 || !stopping_)) return true;
      if (stopping_) return false;
    } else if (stopping_) {
      return false;
    } else if (attachment_.Overdue()) {
      session->context.TryCancel();
      return false;
    }
    changed_.WaitFor(&mutex_, UntilFrom(attachment_.due(), now));
  }
  return false;
}

// Waits for the reader to see the end of the stream; cancels the stream if the coordinator does not end it.
void CoordinatorLink::AwaitEnd(Session* session) {
  bool leaving = false;
  {
    MutexLock lock(&mutex_);
    leaving = stopping_ && session->registered && !session->read_ended;
    session->write_ended = true;
    changed_.SignalAll();
  }
  if (leaving) session->stream->WritesDone();
  const absl::Time until = clock_->Now() + kEndTimeout;
  MutexLock lock(&mutex_);
  for (absl::Time now = clock_->Now(); !session->read_ended && now < until; now = clock_->Now()) {
    changed_.WaitFor(&mutex_, UntilFrom(until, now));
  }
  if (!session->read_ended) session->context.TryCancel();
}

}  // namespace fsdpd
