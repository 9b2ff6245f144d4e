#include "coordinator/serve/public_server.h"

#include <absl/strings/str_cat.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>

#include "base/check.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/net/address.h"
#include "coordinator/access/reader_streams.h"
#include "coordinator/web/web_routes.h"

namespace fsdpd {
namespace {

// Agents ping in every heartbeat interval, even without a call. gRPC's own minimum of five minutes would
// answer with GOAWAY too_many_pings.
constexpr int kMinPingIntervalMs = 1000;
// Threads for calls; agents' streams use none (agent_service.h).
constexpr int kMaxThreads = kMaxReaderStreams + 256;
// Bytes of a stream that a client may send ahead of the reader.
constexpr int kStreamWindowBytes = 256 << 10;
constexpr auto kShutdownGrace = std::chrono::milliseconds(500);

absl::Status CannotListen(const std::string& address) {
  return absl::UnavailableError(
      absl::StrCat("cannot listen on ", address,
                   ": the address is in use, not assigned to this machine, or malformed "
                   "[ADDRESS_NOT_AVAILABLE]"));
}

// gRPC adds health and reflection to every server; this server has no other services.
absl::Status ServeHealth(const std::string& listen, PublicServer* listener) {
  if (listen.empty()) return absl::OkStatus();
  int port = 0;
  grpc::ServerBuilder builder;
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddListeningPort(listen, grpc::InsecureServerCredentials(), &port);
  listener->health = builder.BuildAndStart();
  return listener->health != nullptr && port != 0 ? absl::OkStatus() : CannotListen(listen);
}

// The web UI calls the API through the server that was just started.
absl::Status ServeWebUi(const PublicServerOptions& options, const PublicServerSecurity& security,
                        PublicServer* listener) {
  if (options.web_listen.empty()) return absl::OkStatus();
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kMaxRpcBytes);
  const auto routes = std::make_shared<const WebRoutes>(listener->server->InProcessChannel(arguments),
                                                        /*open=*/security.tokens == nullptr);
  FSDPD_ASSIGN_OR_RETURN(listener->web,
                         WebServer::Start({options.web_listen, security.port},
                                          [routes](const HttpRequest& request, const std::string& from) {
                                            return routes->Answer(request, from);
                                          }));
  LogInfo("serving web UI url=%s", listener->web->url());
  return absl::OkStatus();
}

}  // namespace

SocketReader::SocketReader(grpc::ServerBuilder* builder)
    : queue_(builder->AddCompletionQueue(/*is_frequently_polled=*/true)) {}

void SocketReader::Start() {
  thread_ = std::thread([this] {
    void* tag = nullptr;
    bool ok = false;
    while (queue_->Next(&tag, &ok)) continue;
  });
}

SocketReader::~SocketReader() {
  queue_->Shutdown();
  if (!thread_.joinable()) Start();  // A completion queue must be drained before its destruction.
  thread_.join();
}

absl::StatusOr<PublicServerSecurity> SecurePublicServer(const PublicServerOptions& options) {
  PublicServerSecurity security;
  if (options.tls.given()) {
    FSDPD_ASSIGN_OR_RETURN(security.port, TlsPort::Make(options.tls, options.clock));
    FSDPD_ASSIGN_OR_RETURN(security.tokens, TokenStore::Open(options.tokens, options.clock));
    if (!options.revoked_certs.empty()) {
      FSDPD_ASSIGN_OR_RETURN(security.revoked,
                             RevokedCertificates::Open(options.revoked_certs, options.clock));
    }
  } else {
    FSDPD_ASSIGN_OR_RETURN(const HostPort listen, ParseHostPort(options.listen));
    if (!IsLoopback(listen)) {
      return absl::InvalidArgumentError(
          absl::StrCat(options.listen, " is not a loopback address; use TLS [INVALID_FLAG]"));
    }
  }
  if (!options.audit_log.empty()) {
    FSDPD_ASSIGN_OR_RETURN(security.audit, AuditLog::Open(options.audit_log, options.audit_log_bytes));
  }
  return security;
}

absl::StatusOr<PublicServer> OpenPublicServer(const PublicServerOptions& options,
                                              const PublicServerSecurity& security,
                                              const std::vector<ServedService>& services) {
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  grpc::ResourceQuota quota("fsdpd-coordinator");
  quota.SetMaxThreads(kMaxThreads);
  FSDPD_ASSIGN_OR_RETURN(const HostPort listen, ParseHostPort(options.listen));
  PublicServer listener;
  FSDPD_ASSIGN_OR_RETURN(listener.acceptor, Acceptor::Open(listen));
  grpc::ServerBuilder builder;
  builder.SetResourceQuota(quota);
  builder.SetMaxReceiveMessageSize(kMaxRpcBytes);
  builder.SetMaxSendMessageSize(kMaxRpcBytes);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, kMinPingIntervalMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kAgentLostAfterMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kAgentLostAfterMs);
  // gRPC adapts each connection's window by default. For thousands of agents that send little, the probing
  // pings and timers cost as much as the traffic.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, kStreamWindowBytes);
  const std::shared_ptr<grpc::ServerCredentials> plaintext = grpc::InsecureServerCredentials();
  std::unique_ptr<Acceptor::Sink> sink = builder.experimental().AddExternalConnectionAcceptor(
      grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD,
      security.port ? security.port : plaintext);
  for (const ServedService& each : services) builder.RegisterService(each.service);
  listener.reader = std::make_unique<SocketReader>(&builder);
  listener.server = builder.BuildAndStart();
  if (listener.server == nullptr) return CannotListen(options.listen);
  listener.reader->Start();
  listener.acceptor->Start(std::move(sink));
  absl::Status others = ServeHealth(options.health_listen, &listener);
  if (others.ok()) others = ServeWebUi(options, security, &listener);
  if (!others.ok()) {
    listener.Stop();
    return others;
  }
  // Health is also reported per service, as gRPC probes and load balancers query it.
  for (const ServedService& each : services)
    listener.server->GetHealthCheckService()->SetServingStatus(each.name, each.healthy);
  listener.address =
      absl::StrCat(options.listen.substr(0, options.listen.rfind(':')), ":", listener.acceptor->port());
  return listener;
}

void PublicServer::Stop() {
  if (server == nullptr) return;
  web.reset();
  acceptor.reset();
  const auto until = std::chrono::system_clock::now() + kShutdownGrace;
  server->Shutdown(until);
  server->Wait();
  reader.reset();
  // A health watch has no end of its own.
  if (health != nullptr) health->Shutdown(until);
}

}  // namespace fsdpd
