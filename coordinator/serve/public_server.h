// Public server of a coordinator, whether it leads or is a standby: authentication, TLS, and a gRPC port with
// health and reflection.
//
// Thread-safe.
#pragma once

#include <absl/status/statusor.h>
#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/net/tls_files.h"
#include "coordinator/access/audit_log.h"
#include "coordinator/access/revoked_certificates.h"
#include "coordinator/access/tls_port.h"
#include "coordinator/access/token_store.h"
#include "coordinator/serve/acceptor.h"
#include "coordinator/web/web_server.h"

namespace fsdpd {

struct PublicServerOptions {
  std::string listen = "127.0.0.1:7777";  // Port 0 picks one.
  // If not set: plaintext without authentication. `listen` must then be a loopback address.
  TlsFiles tls;
  std::string tokens;         // File of tokens (token_store.h); requires `tls`.
  std::string revoked_certs;  // File of revoked serial numbers of agents' certificates; empty: none.
  std::string audit_log;      // File of audited calls; empty: none.
  int64_t audit_log_bytes = 64 << 20;
  std::string health_listen;  // Health only, in plaintext, for probes without TLS; empty: off.
  std::string web_listen;     // Web UI (web/web_routes.h), with `tls` as well; empty: off.
  Clock* clock = Clock::Real();
};

// Members are null if the options do not ask for them. Opened once and shared by consecutive servers of this
// process: if a file becomes invalid, its last valid contents stay in use.
struct PublicServerSecurity {
  std::shared_ptr<TlsPort> port;
  std::shared_ptr<TokenStore> tokens;
  std::shared_ptr<RevokedCertificates> revoked;
  std::shared_ptr<AuditLog> audit;
};

// INVALID_ARGUMENT for plaintext on an address that other machines can reach, and for invalid files.
absl::StatusOr<PublicServerSecurity> SecurePublicServer(const PublicServerOptions& options);

// Thread that polls the server's sockets when no other thread does. The threads of gRPC that run callbacks,
// such as those of the agents' streams, sleep for 100 ms after a second without one; a call that arrives then
// would wait that long.
class SocketReader {
 public:
  // Create before the server is built.
  explicit SocketReader(grpc::ServerBuilder* builder);
  ~SocketReader();  // Destroy after the server's Shutdown().
  void Start();     // Call after the server is built.

 private:
  std::unique_ptr<grpc::ServerCompletionQueue> queue_;  // Never has events.
  std::thread thread_;
};

// Running servers. Streams do not end by themselves: Stop() cancels them.
struct PublicServer {
  std::unique_ptr<Acceptor> acceptor;
  std::unique_ptr<grpc::Server> server;
  std::unique_ptr<SocketReader> reader;
  std::unique_ptr<grpc::Server> health;  // Null if not configured.
  std::unique_ptr<WebServer> web;        // Null if not configured.
  std::string address;                   // "host:port", with the chosen port.

  // Cancels calls after half a second and waits for running handlers. Idempotent.
  void Stop();
};

// UNAVAILABLE if an address cannot be listened on. The health service reports each of `services`, which must
// outlive the result.
struct ServedService {
  grpc::Service* service;
  const char* name;
  bool healthy;
};
absl::StatusOr<PublicServer> OpenPublicServer(const PublicServerOptions& options,
                                              const PublicServerSecurity& security,
                                              const std::vector<ServedService>& services);

}  // namespace fsdpd
