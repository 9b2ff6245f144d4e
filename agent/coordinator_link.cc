#include "agent/coordinator_link.h"

#include <absl/strings/str_cat.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <utility>

#include "agent/backoff.h"
#include "base/limits.h"
#include "base/log.h"

namespace fsdpd {
namespace {

constexpr absl::Duration kFirstRetry = absl::Milliseconds(100);
constexpr absl::Duration kLastRetry = absl::Seconds(3);
constexpr absl::Duration kConnectTimeout = absl::Seconds(3);
constexpr auto kConnectSlice = std::chrono::milliseconds(100);  // How late a shutdown may be seen.
constexpr absl::Duration kWelcomeTimeout = absl::Seconds(10);
constexpr absl::Duration kEndTimeout = absl::Seconds(2);
constexpr int kMaxWaitingLogs = 16;  // Messages of a quarter MiB.

bool IsRefusal(const absl::Status& status) {
  return absl::IsAlreadyExists(status) || absl::IsInvalidArgument(status) ||
         absl::IsUnauthenticated(status) || absl::IsPermissionDenied(status);
}

std::chrono::nanoseconds UntilFrom(absl::Time when, absl::Time now) {
  return absl::ToChronoNanoseconds(std::clamp(when - now, absl::ZeroDuration(), absl::Seconds(1)));
}

}  // namespace

// One stream. Guarded by the link's mutex, but for `context` and `stream`, which lock for themselves.
struct CoordinatorLink::Session {
  grpc::ClientContext context;
  std::unique_ptr<Stream> stream;
  int64_t epoch = 0;
  bool welcomed = false;
  bool read_ended = false;
  bool write_ended = false;
  absl::Duration heartbeat_interval = absl::Milliseconds(kHeartbeatIntervalMs);
  absl::Time next_heartbeat;
  absl::Time welcome_deadline;
};

CoordinatorLink::CoordinatorLink(std::string address, Handler* handler, Clock* clock, TlsFiles tls,
                                 int max_lifecycle)
    : address_(std::move(address)),
      own_tls_(tls.given() ? OwnTls::kCertificate : OwnTls::kNone),
      handler_(handler),
      clock_(clock),
      channel_(address_, std::move(tls), clock),
      outbox_(kMaxBufferedReports, max_lifecycle) {}

CoordinatorLink::~CoordinatorLink() { Shutdown(absl::ZeroDuration()); }

void CoordinatorLink::Start() {
  thread_ = std::thread([this] { Run(); });
}

void CoordinatorLink::Shutdown(absl::Duration flush) {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
    flush_until_ = clock_->Now() + flush;
    if (session_ != nullptr && !session_->welcomed) session_->context.TryCancel();
  }
  changed_.SignalAll();
  if (thread_.joinable()) thread_.join();
}

void CoordinatorLink::SendLifecycle(v1::AgentMessage message) {
  MutexLock lock(&mutex_);
  outbox_.AddLifecycle(std::move(message));
  changed_.SignalAll();
}

void CoordinatorLink::SendSaved(v1::AgentMessage message) {
  MutexLock lock(&mutex_);
  outbox_.AddSaved(std::move(message));
  changed_.SignalAll();
}

void CoordinatorLink::SendStep(v1::AgentMessage message) {
  MutexLock lock(&mutex_);
  outbox_.AddStep(std::move(message));
  changed_.SignalAll();
}

void CoordinatorLink::SendRendezvous(v1::AgentMessage message) {
  MutexLock lock(&mutex_);
  outbox_.AddRendezvous(std::move(message));
  changed_.SignalAll();
}

bool CoordinatorLink::SendLogs(v1::LogLines lines) {
  MutexLock lock(&mutex_);
  const int64_t stream = streams_;
  const auto goes_on = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return attached_ && streams_ == stream && !stopping_;
  };
  while (goes_on() && outbox_.waiting_logs() >= kMaxWaitingLogs) changed_.Wait(&mutex_);
  if (!goes_on()) return false;
  v1::AgentMessage message;
  *message.mutable_logs() = std::move(lines);
  outbox_.AddLogs(std::move(message));
  changed_.SignalAll();
  return true;
}

void CoordinatorLink::ForgetRendezvous(const AttemptId& attempt) {
  MutexLock lock(&mutex_);
  outbox_.ForgetRendezvous(attempt);
}

std::vector<v1::AgentMessage> CoordinatorLink::Untold() {
  MutexLock lock(&mutex_);
  return outbox_.Untold();
}

bool CoordinatorLink::attached() {
  MutexLock lock(&mutex_);
  return attached_;
}

void CoordinatorLink::Run() {
  Backoff backoff(kFirstRetry, kLastRetry, std::random_device()());
  absl::Duration wait;
  do {
    const bool before = ever_attached_;
    bool reached = false;
    const absl::StatusOr<std::shared_ptr<grpc::Channel>> channel = channel_.Current();
    if (channel.ok()) reached = AwaitChannel(channel->get());
    const absl::Status status = channel.ok() ? RunStream(*channel) : channel.status();
    bool attached = false;
    {
      MutexLock lock(&mutex_);
      attached = std::exchange(attached_, false);
      if (stopping_) break;
    }
    if (attached) {
      handler_->Connected(false);
      backoff.Reset();
      last_reason_.clear();
    }
    if (!before && !attached && IsRefusal(status)) return handler_->Refused(status);
    SayWhy(status, attached);
    wait = reached ? backoff.Next() : kFirstRetry;  // One that is not there was waited for already.
  } while (WaitBeforeRetry(wait));
  handler_->Connected(false);
}

// Once per reason: a coordinator that is away for an hour is one line.
void CoordinatorLink::SayWhy(const absl::Status& status, bool attached) {
  const std::string words =
      absl::IsUnavailable(status) ? WordsOfConnectFault(status.message(), own_tls_) : status.ToString();
  if (std::exchange(last_reason_, words) == words) return;
  // One that is there and does not fit stays so until somebody does something.
  if (attached || NobodyIsThere(words) || !absl::IsUnavailable(status)) {
    LogWarning("coordinator %s is away, will retry: %s", address_, words);
  } else {
    LogWarning("no connection to coordinator %s, will retry: %s", address_, words);
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

v1::AgentMessage CoordinatorLink::Registration() {
  v1::AgentMessage message;
  *message.mutable_register_() = handler_->Registration();
  auto* hosted = message.mutable_register_()->mutable_hosted();
  MutexLock lock(&mutex_);
  // A rank whose exit is still on its way counts as hosted: it is the exit that must tell of its end.
  for (const RankId& id : outbox_.KeptExits()) {
    auto entry = std::find_if(hosted->begin(), hosted->end(), [&id](const v1::HostedAttempt& a) {
      return a.job_id() == id.of.job_id && a.attempt() == id.of.attempt;
    });
    if (entry == hosted->end()) {
      v1::HostedAttempt* added = hosted->Add();
      added->set_job_id(id.of.job_id);
      added->set_attempt(id.of.attempt);
      added->add_ranks(id.rank);
    } else if (std::find(entry->ranks().begin(), entry->ranks().end(), id.rank) == entry->ranks().end()) {
      entry->add_ranks(id.rank);
    }
  }
  return message;
}

// A call on a channel that is between two connects would fail at once and cost a whole back-off, so wait for
// the channel first. When it does not connect in time, the call that follows says why.
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
  const v1::AgentMessage registration = Registration();
  Session session;
  {
    MutexLock lock(&mutex_);
    if (stopping_) return absl::CancelledError("the agent stops");
    session.welcome_deadline = clock_->Now() + kWelcomeTimeout;
    session_ = &session;
    ++streams_;
    outbox_.NewStream();
  }
  session.stream = stub->Attach(&session.context);  // Waits for the connection.
  session.stream->Write(registration);              // When it fails, the read fails too, and Finish says why.
  std::thread reader([this, &session] { ReadAll(&session); });
  WriteAll(&session);
  AwaitEnd(&session);
  reader.join();
  const grpc::Status status = session.stream->Finish();
  {
    MutexLock lock(&mutex_);
    session_ = nullptr;
    // A coordinator that was left in order has read to the end; of any other nobody knows.
    if (!stopping_ || !status.ok()) outbox_.NewStream();
  }
  changed_.SignalAll();
  if (status.ok()) return absl::UnavailableError("the coordinator ended the stream");
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
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

// False when the coordinator does not keep to the protocol.
bool CoordinatorLink::Take(Session* session, const v1::CoordinatorMessage& message) {
  if (!session->welcomed) {  // Written by this thread alone.
    if (!message.has_welcome() || message.epoch() == 0) {
      LogError("the coordinator's first message is no Welcome with an epoch");
      return false;
    }
    LogInfo("attached coordinator=%s epoch=%d", address_, message.epoch());
    handler_->Connected(true);
    MutexLock lock(&mutex_);
    session->epoch = message.epoch();
    session->welcomed = true;
    attached_ = ever_attached_ = true;
    if (message.welcome().heartbeat_interval_ms() > 0) {
      session->heartbeat_interval = absl::Milliseconds(message.welcome().heartbeat_interval_ms());
    }
    session->next_heartbeat = clock_->Now() + session->heartbeat_interval;
    changed_.SignalAll();
    return true;
  }
  if (message.epoch() != session->epoch) {
    LogError("a message of epoch %d came on the stream of epoch %d", message.epoch(), session->epoch);
    return false;
  }
  if (message.has_rendezvous_value()) {
    MutexLock lock(&mutex_);
    outbox_.ForgetGet(message.rendezvous_value().request());
  }
  if ((message.has_launch() || message.has_stop()) && !AwaitRoom(session)) return false;
  handler_->Received(message);
  return true;
}

// False when the stream ended meanwhile; what the coordinator ordered on it, it decides anew on the next.
bool CoordinatorLink::AwaitRoom(Session* session) {
  MutexLock lock(&mutex_);
  if (outbox_.has_room()) return true;
  LogWarning("the coordinator orders more than it reads the outcome of: its orders wait");
  while (!outbox_.has_room() && !session->write_ended) changed_.Wait(&mutex_);
  return !session->write_ended;
}

void CoordinatorLink::WriteAll(Session* session) {
  v1::AgentMessage message;
  int64_t ticket = -1;
  while (NextToWrite(session, &message, &ticket)) {
    message.set_sent_unix_nanos(absl::ToUnixNanos(clock_->Wall()));
    if (!session->stream->Write(message)) return;
    MutexLock lock(&mutex_);
    const absl::Time now = clock_->Now();
    session->next_heartbeat = now + session->heartbeat_interval;
    outbox_.Settle(now);  // First: it knows an outage by the time since it was asked last.
    if (ticket >= 0) outbox_.Sent(ticket, now);
    changed_.SignalAll();  // Whoever waits to send logs.
  }
}

// Waits for a message of the outbox or for the next heartbeat (ticket -1). False when there is nothing more
// to write.
bool CoordinatorLink::NextToWrite(Session* session, v1::AgentMessage* message, int64_t* ticket) {
  MutexLock lock(&mutex_);
  while (!session->read_ended) {
    const absl::Time now = clock_->Now();
    if (!session->welcomed) {
      if (stopping_ || now >= session->welcome_deadline) {
        session->context.TryCancel();
        return false;
      }
      changed_.WaitFor(&mutex_, UntilFrom(session->welcome_deadline, now));
      continue;
    }
    if (stopping_ && now >= flush_until_) return false;
    if (outbox_.Next(message, ticket)) {
      message->set_epoch(session->epoch);
      return true;
    }
    if (stopping_) return false;
    if (now >= session->next_heartbeat) {
      message->Clear();
      message->mutable_heartbeat();
      message->set_epoch(session->epoch);
      *ticket = -1;
      return true;
    }
    changed_.WaitFor(&mutex_, UntilFrom(session->next_heartbeat, now));
  }
  return false;
}

// Until the reader has seen the end; a coordinator that does not end its side is cut off.
void CoordinatorLink::AwaitEnd(Session* session) {
  bool leaving = false;
  {
    MutexLock lock(&mutex_);
    leaving = stopping_ && session->welcomed && !session->read_ended;
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
