#include "coordinator/server.h"

#include <absl/strings/str_cat.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>

#include <mutex>

#include "base/address.h"
#include "base/check.h"
#include "base/limits.h"
#include "base/log.h"
#include "coordinator/agent_service.h"
#include "coordinator/audit_log.h"
#include "coordinator/gate.h"
#include "coordinator/guarded_api.h"
#include "coordinator/job_service.h"
#include "coordinator/known_node.h"
#include "coordinator/people.h"
#include "coordinator/quota.h"
#include "coordinator/slot_count.h"
#include "coordinator/sqlite_store.h"
#include "coordinator/tls_port.h"
#include "fsdp/plan/plan.h"

namespace fsdpd {
namespace {

// Agents ping every heartbeat interval, also without a call; gRPC's own minimum of five minutes would answer
// that with GOAWAY too_many_pings.
constexpr int kMinPingIntervalMs = 1000;
// Of calls; agents' streams have none (agent_service.h).
constexpr int kMaxThreads = kMaxReaderStreams + 256;
constexpr auto kShutdownGrace = std::chrono::milliseconds(500);

absl::Status CannotListen(const std::string& address) {
  return absl::UnavailableError(absl::StrCat("cannot listen on ", address,
                                             ": the address is in use, not of this machine, or malformed"));
}

}  // namespace

// What decides who may do what, and keeps it on record. Null where the options ask for none.
struct Server::Security {
  std::shared_ptr<TlsPort> port;
  std::unique_ptr<People> people;
  std::unique_ptr<AuditLog> audit;
  std::unique_ptr<QuotaFile> quotas;
};

struct Server::Parts {
  Parts(const ServerOptions& options, std::unique_ptr<SqliteStore> opened, Security given)
      : security(std::move(given)),
        store(std::move(opened)),
        nodes(store->generation(), options.clock),
        logs(&nodes),
        admission([this] { return IdleSlots(nodes.Snapshot()); }),
        reconciler(
            options.reconciler,
            {store.get(), &nodes, &rendezvous, &board, options.clock,
             [](const v1::JobSpec& spec, int64_t budget) { return MakePlan(spec, budget); },
             [file = security.quotas.get()] { return file == nullptr ? RanksByProject() : file->Read(); }}),
        jobs({&admission, store.get(), &board, &reconciler, &nodes, &logs, &traces, options.clock}),
        gate(security.people.get(), [this](const std::string& id) { return jobs.SubmitterOf(id); }),
        api(&jobs, &gate, security.audit.get(), options.clock),
        agents({{&nodes, &reconciler, &rendezvous, &logs, &traces},
                &gate,
                security.audit.get(),
                options.clock}) {}

  Security security;
  std::unique_ptr<SqliteStore> store;
  NodeRegistry nodes;
  Rendezvous rendezvous;
  JobBoard board;
  LogRelay logs;
  TraceRelay traces;
  Admission admission;
  Reconciler reconciler;
  JobService jobs;
  Gate gate;
  GuardedApi api;
  AgentService agents;
  std::unique_ptr<grpc::Server> grpc;
  std::unique_ptr<grpc::Server> health;
  std::string address;
  std::once_flag stopped;
};

Server::Server(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

Server::~Server() { Stop(); }

absl::StatusOr<Server::Security> Server::Secure(const ServerOptions& options) {
  Security security;
  if (options.tls.given()) {
    FSDPD_ASSIGN_OR_RETURN(security.port, TlsPort::Make(options.tls, options.clock));
    FSDPD_ASSIGN_OR_RETURN(security.people, People::Open(options.tokens, options.clock));
  } else {
    FSDPD_ASSIGN_OR_RETURN(const HostPort listen, ParseHostPort(options.listen));
    if (!IsLoopback(listen)) {
      return absl::InvalidArgumentError(
          absl::StrCat(options.listen, " is reached from other machines: that needs TLS"));
    }
  }
  if (!options.quotas.empty()) {
    FSDPD_ASSIGN_OR_RETURN(security.quotas, QuotaFile::Open(options.quotas, options.clock));
  }
  if (!options.audit_log.empty()) {
    FSDPD_ASSIGN_OR_RETURN(security.audit, AuditLog::Open(options.audit_log, options.audit_log_bytes));
  }
  return security;
}

// gRPC adds health and reflection to every server by itself; this one has nothing else.
absl::Status Server::ServeHealth(const std::string& listen, Parts* parts) {
  if (listen.empty()) return absl::OkStatus();
  int port = 0;
  grpc::ServerBuilder builder;
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddListeningPort(listen, grpc::InsecureServerCredentials(), &port);
  parts->health = builder.BuildAndStart();
  return parts->health != nullptr && port != 0 ? absl::OkStatus() : CannotListen(listen);
}

// What cannot be read is no reason not to start.
void Server::RestoreNodes(const Clock& clock, Parts* parts) {
  const absl::StatusOr<v1::ListNodesResponse> known = parts->store->Nodes();
  if (!known.ok()) return LogWarning("%s", known.status().ToString());
  for (const v1::Node& node : known->nodes()) parts->nodes.Restore(ViewOf(node, clock));
}

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const ServerOptions& options) {
  FSDPD_ASSIGN_OR_RETURN(Security security, Secure(options));
  FSDPD_ASSIGN_OR_RETURN(std::unique_ptr<SqliteStore> store, SqliteStore::Open(options.state_dir));
  auto parts = std::make_unique<Parts>(options, std::move(store), std::move(security));
  FSDPD_RETURN_IF_ERROR(parts->reconciler.Load());
  RestoreNodes(*options.clock, parts.get());

  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  grpc::ResourceQuota quota("fsdpd-coordinator");
  quota.SetMaxThreads(kMaxThreads);
  int port = 0;
  grpc::ServerBuilder builder;
  builder.SetResourceQuota(quota);
  builder.SetMaxReceiveMessageSize(kMaxRpcBytes);
  builder.SetMaxSendMessageSize(kMaxRpcBytes);
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);  // Two coordinators on one port must not share it.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, kMinPingIntervalMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kAgentLostAfterMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kAgentLostAfterMs);
  const std::shared_ptr<grpc::ServerCredentials> plaintext = grpc::InsecureServerCredentials();
  builder.AddListeningPort(options.listen, parts->security.port ? parts->security.port : plaintext, &port);
  builder.RegisterService(&parts->api);
  builder.RegisterService(&parts->agents);
  parts->grpc = builder.BuildAndStart();
  if (parts->grpc == nullptr || port == 0) {
    return CannotListen(options.listen);
  }
  if (const absl::Status health = ServeHealth(options.health_listen, parts.get()); !health.ok()) {
    parts->grpc->Shutdown(std::chrono::system_clock::now());  // Streams of agents do not end by themselves.
    return health;
  }
  // Health answers by service too, as gRPC's probes and load balancers ask.
  for (const char* service : {v1::Coordinator::service_full_name(), v1::AgentLink::service_full_name()}) {
    parts->grpc->GetHealthCheckService()->SetServingStatus(service, true);
  }
  parts->address = absl::StrCat(options.listen.substr(0, options.listen.rfind(':')), ":", port);
  parts->reconciler.Start();
  return std::unique_ptr<Server>(new Server(std::move(parts)));
}

std::string Server::address() const { return parts_->address; }

void Server::Stop() {
  std::call_once(parts_->stopped, [this] {
    parts_->jobs.Close();
    parts_->board.Close();
    // Agents' streams do not end by themselves: after the grace their calls are cancelled, which ends the
    // reads.
    parts_->grpc->Shutdown(std::chrono::system_clock::now() + kShutdownGrace);
    parts_->grpc->Wait();
    if (parts_->health != nullptr) parts_->health->Shutdown();
    parts_->reconciler.Stop();
  });
}

}  // namespace fsdpd
