#include "client/connect/coordinator_client.h"

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/string_view.h>
#include <absl/time/clock.h>
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <mutex>
#include <type_traits>
#include <utility>

#include "base/limits.h"
#include "base/net/address.h"
#include "base/net/connect_error.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "proto/fsdpd/v1/coordinator.grpc.pb.h"

namespace fsdpd {
namespace {

constexpr absl::Duration kFirstPause = absl::Milliseconds(100);
constexpr absl::Duration kMaxPause = absl::Seconds(1);
constexpr absl::Duration kReasonTimeout = absl::Milliseconds(200);
// Limit for error details in trailers. This coordinator sends up to 4 KiB; a newer one may send more.
constexpr int kMaxMetadataBytes = 64 << 10;
constexpr int kKeepaliveMs = 10'000;
constexpr size_t kMaxServers = 16;
constexpr char kMayHaveTakenEffect[] = "fsdpd/may_have_taken_effect";  // Payload of a status.
constexpr int kMaxImmediateSwitches = 4;  // From one coordinator to another without a backoff.
constexpr absl::Duration kMaxConnectTime = absl::Seconds(5);
// How long a call or stream waits for a channel whose last connect failed; other coordinators may be up.
constexpr absl::Duration kReconnectWait = absl::Seconds(1);
constexpr absl::Duration kReconnectWaitWithAlternatives = absl::Milliseconds(250);
constexpr absl::Duration kConnectPollInterval =
    absl::Milliseconds(100);  // Bounds the latency of an interrupt.

template <typename Detail>
std::string UrlOf() {
  return absl::StrCat("type.googleapis.com/", Detail::descriptor()->full_name());
}

template <typename Detail>
bool ReadDetail(const absl::Status& status, Detail* detail) {
  const auto payload = status.GetPayload(UrlOf<Detail>());
  return payload.has_value() && detail->ParseFromString(std::string(*payload));
}

absl::Status FromGrpc(const grpc::Status& wire) {
  if (wire.ok()) return absl::OkStatus();
  absl::Status status(static_cast<absl::StatusCode>(wire.error_code()), wire.error_message());
  google::rpc::Status details;
  if (!details.ParseFromString(wire.error_details())) return status;
  for (const auto& detail : details.details())
    status.SetPayload(detail.type_url(), absl::Cord(detail.value()));
  return status;
}

absl::Duration PauseAfter(const absl::Status& status, absl::Duration otherwise) {
  google::rpc::RetryInfo retry;
  if (!ReadDetail(status, &retry)) return otherwise;
  return absl::Seconds(retry.retry_delay().seconds()) + absl::Nanoseconds(retry.retry_delay().nanos());
}

// gRPC sends call credentials over TLS only.
std::shared_ptr<grpc::ChannelCredentials> CredentialsOf(const CoordinatorClient::Options& options) {
  if (options.trusted.empty()) return grpc::InsecureChannelCredentials();
  grpc::SslCredentialsOptions ssl;
  ssl.pem_root_certs = options.trusted;
  const std::shared_ptr<grpc::ChannelCredentials> channel = grpc::SslCredentials(ssl);
  if (options.token.empty()) return channel;
  return grpc::CompositeChannelCredentials(channel, grpc::AccessTokenCredentials(options.token));
}

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address,
                                           const CoordinatorClient::Options& options) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kMaxRpcBytes);
  arguments.SetInt(GRPC_ARG_MAX_METADATA_SIZE, kMaxMetadataBytes);
  // The defaults (1 s up to 2 min) protect large fleets of servers. Here a user waits for a single server.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  // Timeout of one connection attempt. A third of the call timeout leaves time for the other addresses of a
  // host name if the first one drops packets.
  arguments.SetInt(
      GRPC_ARG_MIN_RECONNECT_BACKOFF_MS,
      static_cast<int>(absl::ToInt64Milliseconds(std::min(options.call_timeout / 3, kMaxConnectTime))));
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  // Detects an unresponsive coordinator on a stream that would otherwise send no packets.
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveMs);
  // Connect to the given address directly: HTTP proxies do not apply within a cluster.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  return grpc::CreateCustomChannel(address, CredentialsOf(options), arguments);
}

// Whether the status means "reachable, but no response", such as a stopped process or a firewall that drops
// packets. gRPC reports these cases as UNAVAILABLE and distinguishes them only in the message. "Handshake
// read failed" without a further reason is a TLS handshake that timed out, rather than one that the peer
// ended.
bool IsNoResponse(const absl::Status& status) {
  return absl::IsDeadlineExceeded(status) ||
         (absl::IsUnavailable(status) && (absl::StrContains(status.message(), "timed out") ||
                                          absl::StrContains(status.message(), "Timeout occurred") ||
                                          absl::EndsWith(status.message(), "Handshake read failed") ||
                                          absl::StrContains(status.message(), "keepalive")));
}

// gRPC 1.51 polls a connecting socket only from a thread that waits for the channel or inside a call
// (otherwise every 5 s), and after a failed connect a call returns immediately. A TCP connect needs no poll,
// but a TLS handshake does: with failing calls and sleeps only, each handshake would miss its deadline.
void AwaitReconnect(grpc::Channel* channel, absl::Time until, Interrupt* interrupt) {
  if (channel->GetState(/*try_to_connect=*/false) != GRPC_CHANNEL_TRANSIENT_FAILURE) return;
  for (absl::Time now = absl::Now(); now < until && !(interrupt && interrupt->fired()); now = absl::Now())
    if (channel->WaitForConnected(absl::ToChronoTime(std::min(now + kConnectPollInterval, until)))) return;
}

absl::Status NormalizeNoResponse(const absl::Status& status) {
  return IsNoResponse(status) ? absl::DeadlineExceededError("no answer in time") : status;
}

// Values of the columns `effect` and `retry` of FSDPD_API_TABLE.
constexpr bool kReads = false, kChanges = true;
template <typename Request>
bool Always(const Request&) {
  return true;
}
template <typename Request>
bool Never(const Request&) {
  return false;
}
bool WithRequestId(const v1::SubmitJobRequest& request) { return !request.request_id().empty(); }
template <typename Request>
bool WithoutEtag(const Request& request) {
  return request.etag().empty();
}

}  // namespace

bool MayHaveTakenEffect(const absl::Status& status) {
  return status.GetPayload(kMayHaveTakenEffect).has_value();
}

std::string ReasonOf(const absl::Status& status) {
  google::rpc::ErrorInfo info;
  if (!ReadDetail(status, &info)) return "";
  return info.reason() == "BAD_SPEC" ? "INVALID_SPEC" : info.reason();  // The name in release 0.1.
}

Violations FieldViolationsOf(const absl::Status& status) {
  google::rpc::BadRequest bad;
  Violations violations;
  v1::SpecViolations faults;
  if (ReadDetail(status, &faults)) {
    for (const v1::Violation& f : faults.violations()) {
      violations.push_back({f.rule(), ViolationLevel::kError, f.field(), f.reason(), f.fix(), "", ""});
    }
    return violations;
  }
  if (!ReadDetail(status, &bad)) return violations;
  for (const auto& field : bad.field_violations()) {
    violations.push_back({"", ViolationLevel::kError, field.field(), field.description(), "", "", ""});
  }
  return violations;
}

// A coordinator address with its channel. The channel is created on first use, because it starts threads that
// --offline does not need.
struct CoordinatorClient::Server {
  Server(std::string where, const Options& options) : address(std::move(where)), options_(options) {}

  grpc::Channel* channel() {
    Open();
    return channel_.get();
  }
  v1::Coordinator::Stub* stub() {
    Open();
    return stub_.get();
  }

  const std::string address;

 private:
  void Open() {
    std::call_once(opened_, [this] {
      channel_ = MakeChannel(address, options_);
      stub_ = v1::Coordinator::NewStub(channel_);
    });
  }

  const Options options_;
  std::once_flag opened_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Coordinator::Stub> stub_;
};

// An address that ParseAddresses() rejects is used unchanged, so that gRPC reports what is wrong.
CoordinatorClient::CoordinatorClient(std::string addresses, Options options)
    : address_(std::move(addresses)), options_(std::move(options)) {
  const absl::StatusOr<std::vector<std::string>> several = ParseAddresses(address_);
  for (const std::string& each : several.ok() ? *several : std::vector<std::string>{address_})
    servers_.push_back(std::make_shared<Server>(each, options_));
}

CoordinatorClient::~CoordinatorClient() = default;

std::shared_ptr<CoordinatorClient::Server> CoordinatorClient::CurrentServer() {
  MutexLock lock(&mutex_);
  return servers_[current_];
}

std::shared_ptr<CoordinatorClient::Server> CoordinatorClient::ReconnectedServer(absl::Time deadline,
                                                                                Interrupt* interrupt) {
  std::shared_ptr<Server> server;
  absl::Duration wait = kReconnectWait;
  {
    MutexLock lock(&mutex_);
    server = servers_[current_];
    if (servers_.size() > 1) wait = kReconnectWaitWithAlternatives;
  }
  AwaitReconnect(server->channel(), std::min(absl::Now() + wait, deadline), interrupt);
  return server;
}

bool CoordinatorClient::SwitchServer(const Server& called, const absl::Status& status) {
  google::rpc::ErrorInfo info;
  const bool not_leader = ReadDetail(status, &info) && info.reason() == "NOT_LEADER";
  const bool gone = !not_leader && (absl::IsUnavailable(status) || IsNoResponse(status));
  if (!not_leader && !gone) return false;
  const auto leader = info.metadata().find("leader");
  MutexLock lock(&mutex_);
  if (servers_[current_].get() != &called) return true;  // Another thread has switched already.
  if (!not_leader || leader == info.metadata().end()) {
    current_ = (current_ + 1) % servers_.size();
    return gone && servers_.size() > 1;
  }
  const auto known = std::find_if(servers_.begin(), servers_.end(),
                                  [&](const auto& server) { return server->address == leader->second; });
  current_ = static_cast<size_t>(known - servers_.begin());
  if (known == servers_.end()) {
    if (servers_.size() >= kMaxServers) current_ = 0;
    if (servers_.size() < kMaxServers) servers_.push_back(std::make_shared<Server>(leader->second, options_));
  }
  return servers_[current_].get() != &called;
}

absl::Status CoordinatorClient::Connect() {
  const absl::Time deadline = absl::Now() + options_.call_timeout;
  size_t servers = 0;
  {
    MutexLock lock(&mutex_);
    servers = servers_.size();
  }
  absl::Status status;
  for (size_t tried = 0; tried < servers; ++tried) {
    const std::shared_ptr<Server> server = CurrentServer();
    // Only the last server gets the full time, as a single one would.
    const bool last = tried + 1 == servers;
    status =
        ConnectTo(server.get(), std::min(absl::Now() + options_.connect_timeout / (last ? 1 : 2), deadline),
                  last ? deadline : absl::Now());
    if (status.ok() || !SwitchServer(*server, status)) return status;
  }
  return status;
}

// Makes a call in addition to the connection: a coordinator that was stopped after the handshake looks
// connected, and a stream would notice only by keepalive.
absl::Status CoordinatorClient::ConnectTo(Server* server, absl::Time until, absl::Time deadline) {
  while (true) {
    const bool connected = server->channel()->WaitForConnected(absl::ToChronoTime(until));
    const absl::Duration patience =
        connected ? std::min(options_.connect_timeout, options_.call_timeout) : kReasonTimeout;
    // On a failed channel the call immediately returns the reason; on a connecting channel it waits.
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(std::max(deadline, absl::Now() + patience)));
    v1::GetVersionResponse response;
    const absl::Status status = FromGrpc(server->stub()->GetVersion(&context, {}, &response));
    // Any response, including an error, means that the server is reachable. The caller's next call reports
    // it.
    if (!absl::IsUnavailable(status) && !IsNoResponse(status)) return absl::OkStatus();
    if (!IsNoResponse(status))
      return absl::UnavailableError(
          ConnectErrorText(status.message(), options_.trusted.empty() ? OwnTls::kNone : OwnTls::kTrust));
    if (absl::Now() >= deadline) return NormalizeNoResponse(status);
    until = std::min(absl::Now() + options_.connect_timeout, deadline);
  }
}

template <typename Request, typename Response, typename Method>
absl::StatusOr<Response> CoordinatorClient::Call(Method method, const Request& request, bool again,
                                                 bool changes) {
  constexpr bool kSearches = std::is_same_v<Request, v1::SearchPlansRequest>;
  const absl::Time deadline = absl::Now() + (kSearches ? options_.search_timeout : options_.call_timeout);
  absl::Duration pause = kFirstPause;
  for (int switches = 0;;) {
    const std::shared_ptr<Server> server = ReconnectedServer(deadline, nullptr);
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(deadline));
    Response response;
    absl::Status status = FromGrpc((server->stub()->*method)(&context, request, &response));
    if (status.ok()) return response;
    // This client does not cancel unary calls, so the server did.
    if (absl::IsCancelled(status))
      status = absl::UnavailableError("the coordinator stopped before it answered");
    const bool not_done = ReasonOf(status) == "NOT_LEADER";
    const bool repeat = absl::IsUnavailable(status) && ((again && options_.repeats) || not_done);
    const bool switched = SwitchServer(*server, status);
    const bool immediately = switched && switches < kMaxImmediateSwitches;
    const absl::Duration wait = immediately ? absl::ZeroDuration() : PauseAfter(status, pause);
    if (!repeat || absl::Now() + wait >= deadline) {
      status = NormalizeNoResponse(status);
      if (absl::IsDeadlineExceeded(status) && changes) status.SetPayload(kMayHaveTakenEffect, absl::Cord());
      return status;
    }
    switches = immediately ? switches + 1 : 0;
    if (immediately) continue;
    absl::SleepFor(wait);
    pause = std::min(2 * pause, kMaxPause);
  }
}

template <typename Response, typename Open>
absl::Status CoordinatorClient::ReadStream(const Open& open, Interrupt* interrupt,
                                           const std::function<void(const Response&)>& on_message) {
  for (int switches = 0;; ++switches) {
    const std::shared_ptr<Server> server = ReconnectedServer(absl::InfiniteFuture(), interrupt);
    // Shared with the interrupt's action, which may still run while this function returns.
    const auto context = std::make_shared<grpc::ClientContext>();
    Interrupt::Scope scope(interrupt, [context] { context->TryCancel(); });
    const auto reader = open(server->stub(), context.get());
    Response message;
    while (reader->Read(&message)) on_message(message);
    const absl::Status status = FromGrpc(reader->Finish());
    if (interrupt->fired()) return absl::CancelledError("interrupted");
    const bool switched = SwitchServer(*server, status);
    if (!switched || ReasonOf(status) != "NOT_LEADER" || switches >= kMaxImmediateSwitches) return status;
  }
}

#define FSDPD_UNARY(method, handler, standby, role, own, effect, retry, reader)                        \
  absl::StatusOr<v1::method##Response> CoordinatorClient::method(const v1::method##Request& request) { \
    return Call<v1::method##Request, v1::method##Response>(&v1::Coordinator::Stub::method, request,    \
                                                           retry(request), effect);                    \
  }
#define FSDPD_STREAM(method, ...)                                                      \
  absl::Status CoordinatorClient::method(                                              \
      const v1::method##Request& request, Interrupt* interrupt,                        \
      const std::function<void(const v1::method##Response&)>& on_message) {            \
    const auto open = [&](v1::Coordinator::Stub* stub, grpc::ClientContext* context) { \
      return stub->method(context, request);                                           \
    };                                                                                 \
    return ReadStream<v1::method##Response>(open, interrupt, on_message);              \
  }
FSDPD_API_TABLE(FSDPD_UNARY, FSDPD_STREAM)
#undef FSDPD_UNARY
#undef FSDPD_STREAM

}  // namespace fsdpd
