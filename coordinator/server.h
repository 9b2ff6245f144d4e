// A whole coordinator: opens its state, loads the jobs, serves both APIs with health and reflection, and
// stops cleanly. main() and the tests use it alike; everything else in this folder is a part of it.
//
// Call order: Start() -> address() ... -> Stop() (also by the destructor). Start() returns when calls are
// served. Stop() ends open streams, waits at most about a second for calls, and leaves agents and their ranks
// alone. Errors of Start(): FAILED_PRECONDITION for a state directory that is in use or unusable, DATA_LOSS
// for a damaged one, UNAVAILABLE for an address that cannot be listened on, INVALID_ARGUMENT for plaintext on
// an address that others reach and for TLS files or tokens with a fault.
#pragma once

#include <absl/status/statusor.h>

#include <memory>
#include <string>

#include "base/clock.h"
#include "base/tls_files.h"
#include "coordinator/reconciler.h"

namespace fsdpd {

struct ServerOptions {
  std::string listen = "127.0.0.1:7777";  // Port 0 picks one.
  std::string state_dir;
  // Not given: plaintext, and nobody is asked who he is. Then `listen` is for this machine alone.
  TlsFiles tls;
  std::string tokens;     // File of who may call (people.h); with `tls`.
  std::string quotas;     // File of how many ranks projects may have (quota.h); empty: as many as there are.
  std::string audit_log;  // File that says who did what; empty: none.
  int64_t audit_log_bytes = 64 << 20;
  std::string health_listen;  // Health alone, in plaintext, for probes that know no TLS; empty: nowhere.
  ReconcilerOptions reconciler;
  Clock* clock = Clock::Real();
};

class Server {
 public:
  static absl::StatusOr<std::unique_ptr<Server>> Start(const ServerOptions& options);
  ~Server();

  std::string address() const;  // "host:port", with the port that was picked.
  void Stop();                  // Idempotent.

 private:
  struct Security;
  struct Parts;
  static absl::StatusOr<Security> Secure(const ServerOptions& options);
  static absl::Status ServeHealth(const std::string& listen, Parts* parts);
  static void RestoreNodes(const Clock& clock, Parts* parts);
  explicit Server(std::unique_ptr<Parts> parts);

  std::unique_ptr<Parts> parts_;
};

}  // namespace fsdpd
