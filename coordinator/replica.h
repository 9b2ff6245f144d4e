// One of several coordinators of one state in etcd: it stands by, leads when it is the one, and stands by
// again when that is over. It serves on one address throughout; in between nobody answers there for some
// milliseconds.
//
// Start() returns when it serves; Run() returns at the stop, or with the error for which this coordinator can
// neither lead nor stand by. One thread.
#pragma once

#include <absl/status/statusor.h>
#include <absl/time/time.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "coordinator/server.h"
#include "coordinator/store/etcd_client.h"

namespace fsdpd {

struct ReplicaOptions {
  ServerOptions server;
  EtcdOptions etcd;
  std::string prefix = "/fsdpd/";  // Ends with '/'.
  std::string advertise;           // HOST:PORT at which others reach this one; empty: as it listens.
  absl::Duration lease = absl::Seconds(5);
};

// "etcd://HOST:PORT,HOST:PORT/PREFIX" into members and prefix. INVALID_ARGUMENT says what is wrong.
absl::Status ParseStore(const std::string& store, ReplicaOptions* options);

class Leadership;

class Replica {
 public:
  // Waits so long for the stop, and says whether it came; also when it is asked again.
  using StopWaiter = std::function<bool(absl::Duration)>;

  static absl::StatusOr<std::unique_ptr<Replica>> Start(const ReplicaOptions& options);
  ~Replica();

  const std::string& address() const;  // "host:port", with the port that was picked.
  absl::Status Run(const StopWaiter& stops);

 private:
  class Standby;
  explicit Replica(const ReplicaOptions& options);
  absl::Status StandBy();
  absl::Status Lead(const StopWaiter& stops, Leadership* leadership, const std::atomic<bool>& lost);

  ReplicaOptions options_;
  std::unique_ptr<EtcdClient> etcd_;
  std::unique_ptr<Standby> standby_;  // Null while it leads.
};

}  // namespace fsdpd
