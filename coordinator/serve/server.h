// Complete coordinator: opens its state, loads the jobs, serves both APIs with health and reflection, and
// stops cleanly. main() and the tests use it; everything else in this directory is a part of it.
//
// Start() returns when calls are served. Stop(), which the destructor calls too, first ends all decisions, so
// that no attempt is judged by the streams that it closes. It then closes streams, cancels calls after half a
// second, and leaves agents and their ranks running. It waits for a write in progress, and for handlers that
// do not check for cancellation: a plan, a page of jobs.
//
// Errors of Start(): FAILED_PRECONDITION for a state directory that is in use or unusable, DATA_LOSS for a
// damaged one, UNAVAILABLE for an address that cannot be listened on, INVALID_ARGUMENT for plaintext on an
// address that other machines can reach, and for invalid TLS or token files.
#pragma once

#include <absl/status/statusor.h>

#include <functional>
#include <memory>
#include <string>

#include "coordinator/reconcile/reconciler.h"
#include "coordinator/schedule/quota.h"
#include "coordinator/serve/metrics_page.h"
#include "coordinator/serve/public_server.h"
#include "coordinator/store/state_store.h"

namespace fsdpd {

struct ServerOptions : PublicServerOptions {
  std::string state_dir;
  std::string quotas;          // File of project quotas (quota.h); empty: no limits.
  std::string metrics_listen;  // HOST:PORT of /metrics, in plaintext; empty: off.
  ReconcilerOptions reconciler;
};

// Files that are reread while the coordinator runs, shared by consecutive terms of leadership (replica.h).
struct ServerFiles {
  PublicServerSecurity security;
  std::shared_ptr<QuotaFile> quotas;  // Null without quotas.
  std::shared_ptr<MetricsPage> page;  // Not null even if metrics are not served.
};

class Server {
 public:
  using OpenStore = std::function<absl::StatusOr<std::unique_ptr<StateStore>>()>;
  static absl::StatusOr<std::unique_ptr<Server>> Start(const ServerOptions& options);  // Uses `state_dir`.
  static absl::StatusOr<ServerFiles> OpenFiles(const ServerOptions& options);
  static absl::StatusOr<std::unique_ptr<Server>> Start(const ServerOptions& options, const ServerFiles& files,
                                                       const OpenStore& open);
  ~Server();

  std::string address() const;           // "host:port", with the chosen port.
  std::string metrics_endpoint() const;  // As above; "" if metrics are not served.
  std::string page_url() const;          // URL of the web UI, as above; empty if off.
  void Stop();                           // Idempotent.

 private:
  struct Parts;
  explicit Server(std::unique_ptr<Parts> parts);

  std::unique_ptr<Parts> parts_;
};

}  // namespace fsdpd
