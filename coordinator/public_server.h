// What every coordinator serves with, whether it leads or stands by: who may call, over what, and how a port
// is opened with health and reflection.
//
// Thread-safe: functions.
#pragma once

#include <absl/status/statusor.h>
#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/tls_files.h"
#include "coordinator/acceptor.h"
#include "coordinator/audit_log.h"
#include "coordinator/revoked_certificates.h"
#include "coordinator/tls_port.h"
#include "coordinator/token_store.h"
#include "coordinator/web/web_server.h"

namespace fsdpd {

struct PublicServerOptions {
  std::string listen = "127.0.0.1:7777";  // Port 0 picks one.
  // Not given: plaintext, and nobody is asked who he is. Then `listen` is for this machine alone.
  TlsFiles tls;
  std::string tokens;         // File of who may call (token_store.h); with `tls`.
  std::string revoked_certs;  // Serial numbers of agents' certificates, as a file; empty: none is revoked.
  std::string audit_log;      // File that says who did what; empty: none.
  int64_t audit_log_bytes = 64 << 20;
  std::string health_listen;  // Health alone, in plaintext, for probes that know no TLS; empty: nowhere.
  std::string web_listen;     // The page for browsers (web/web_routes.h), over `tls` as well; empty: nowhere.
  Clock* clock = Clock::Real();
};

// Null where the options ask for none. Opened once, also where one front follows another: what was read stays
// in use when the files get a fault.
struct PublicServerSecurity {
  std::shared_ptr<TlsPort> port;
  std::shared_ptr<TokenStore> people;
  std::shared_ptr<RevokedCertificates> revoked;
  std::shared_ptr<AuditLog> audit;
};

// INVALID_ARGUMENT for plaintext on an address that others reach, and for files with a fault.
absl::StatusOr<PublicServerSecurity> SecurePublicServer(const PublicServerOptions& options);

// A thread that reads the server's sockets whenever nobody else does. Where a service has callbacks, as that
// of agents' streams, gRPC leaves this to the few threads that run those; and each of them, after a second
// without one, sleeps for 100 ms. With none but these a call that comes meanwhile waits that long.
class SocketReader {
 public:
  // Before the server is built.
  explicit SocketReader(grpc::ServerBuilder* builder);
  ~SocketReader();  // After the server's Shutdown().
  void Start();     // Once the server is there.

 private:
  std::unique_ptr<grpc::ServerCompletionQueue> queue_;  // On which nothing happens.
  std::thread thread_;
};

// Running servers. Streams do not end by themselves: who shuts them down cancels those.
struct PublicServer {
  std::unique_ptr<Acceptor> acceptor;
  std::unique_ptr<grpc::Server> server;
  std::unique_ptr<SocketReader> reader;
  std::unique_ptr<grpc::Server> health;  // Null where the options ask for none.
  std::unique_ptr<WebServer> web;        // Likewise.
  std::string address;                   // "host:port", with the port that was picked.

  // Cancels calls after half a second, and waits for the handlers that are under way then. Idempotent.
  void Stop();
};

// UNAVAILABLE for an address that cannot be listened on. Health answers for each of `services`, which outlive
// it.
struct ServedService {
  grpc::Service* service;
  const char* name;
  bool healthy;
};
absl::StatusOr<PublicServer> OpenPublicServer(const PublicServerOptions& options,
                                              const PublicServerSecurity& security,
                                              const std::vector<ServedService>& services);

}  // namespace fsdpd
