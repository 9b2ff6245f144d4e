// A whole coordinator: opens its state, loads the jobs, serves both APIs with health and reflection, and
// stops cleanly. main() and the tests use it alike; everything else in this directory is a part of it.
//
// Call order: Start() -> address() ... -> Stop() (also by the destructor). Start() returns when calls are
// served. Stop() decides nothing more from the first, so that nobody is judged by streams which it ends; it
// ends open streams, cancels calls after half a second, and leaves agents and their ranks alone. It waits for
// a write that is under way, and for handlers that do not look whether their call was cancelled: a plan, a
// page of jobs. Errors of Start(): FAILED_PRECONDITION for a state directory that is in use or unusable,
// DATA_LOSS for a damaged one, UNAVAILABLE for an address that cannot be listened on, INVALID_ARGUMENT for
// plaintext on an address that others reach and for TLS files or tokens with a fault.
#pragma once

#include <absl/status/statusor.h>

#include <functional>
#include <memory>
#include <string>

#include "coordinator/metrics_page.h"
#include "coordinator/public_server.h"
#include "coordinator/quota.h"
#include "coordinator/reconciler.h"
#include "coordinator/store/state_store.h"

namespace fsdpd {

struct ServerOptions : PublicServerOptions {
  std::string state_dir;
  std::string quotas;  // File of how many ranks projects may have (quota.h); empty: as many as there are.
  std::string metrics_listen;  // HOST:PORT of /metrics, in plaintext; empty: nowhere.
  ReconcilerOptions reconciler;
};

// What it goes on reading while it runs. Opened once, also where it leads again and again (replica.h): a
// fault that a file gets later leaves what was read before.
struct ServerFiles {
  PublicServerSecurity security;
  std::shared_ptr<QuotaFile> quotas;  // Null where there are none.
  std::shared_ptr<MetricsPage> page;  // Also where it is served nowhere.
};

class Server {
 public:
  using OpenStore = std::function<absl::StatusOr<std::unique_ptr<StateStore>>()>;
  static absl::StatusOr<std::unique_ptr<Server>> Start(const ServerOptions& options);  // On `state_dir`.
  static absl::StatusOr<ServerFiles> OpenFiles(const ServerOptions& options);
  static absl::StatusOr<std::unique_ptr<Server>> Start(const ServerOptions& options, const ServerFiles& files,
                                                       const OpenStore& open);
  ~Server();

  std::string address() const;           // "host:port", with the port that was picked.
  std::string metrics_endpoint() const;  // Likewise; "" where it is served nowhere.
  std::string page_url() const;          // Of the page, likewise; empty where there is none.
  void Stop();                           // Idempotent.

 private:
  struct Parts;
  explicit Server(std::unique_ptr<Parts> parts);

  std::unique_ptr<Parts> parts_;
};

}  // namespace fsdpd
