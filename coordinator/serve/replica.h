// One of several coordinators that share a state in etcd: it is a standby until it is elected, leads, and
// becomes a standby again when its term ends. It serves on one address throughout, except while the old
// server stops (server.h) and the new one loads its state, which takes half a second or more.
//
// Start() returns when it serves; Run() returns at the stop. An error that prevents it from leading or
// listening is logged once and retried. Not thread-safe.
#pragma once

#include <absl/status/statusor.h>
#include <absl/time/time.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "coordinator/serve/server.h"
#include "coordinator/store/etcd_client.h"

namespace fsdpd {

struct ReplicaOptions {
  ServerOptions server;
  EtcdOptions etcd;
  std::string prefix = "/fsdpd/";  // Ends with '/'.
  std::string advertise;           // HOST:PORT at which others reach this replica; empty: its listen address.
  absl::Duration lease = absl::Seconds(5);
};

class Leadership;

class Replica {
 public:
  // Waits up to the given time for the stop and returns whether it was requested; repeatable.
  using StopWaiter = std::function<bool(absl::Duration)>;

  static absl::StatusOr<std::unique_ptr<Replica>> Start(const ReplicaOptions& options);
  ~Replica();

  const std::string& address() const;    // "host:port", with the chosen port.
  std::string metrics_endpoint() const;  // As above; "" if metrics are not served.
  void Run(const StopWaiter& stops);

 private:
  class Standby;
  Replica(const ReplicaOptions& options, ServerFiles files);
  absl::Status StandBy();
  // Returns false if the stop came first.
  bool StandByAgain(const StopWaiter& stops);
  // Returns the leadership if it was free; null if another replica leads.
  std::unique_ptr<Leadership> TryLead(std::atomic<bool>* lost);
  void LogNoLead(const absl::Status& why);
  absl::Time Now() const { return options_.server.clock->Now(); }
  absl::Status Lead(const StopWaiter& stops, Leadership* leadership, const std::atomic<bool>& lost);

  ReplicaOptions options_;
  const ServerFiles files_;
  std::shared_ptr<EtcdClient> etcd_;                     // Shared with the metrics endpoint.
  std::unique_ptr<Standby> standby_;                     // Null while leading.
  bool etcd_unreachable_ = false;                        // As logged.
  absl::Time etcd_read_;                                 // When it last answered.
  std::string why_none_;                                 // The value of LeaderSeen.why_no_leader.
  absl::StatusCode no_lead_ = absl::StatusCode::kOk;     // Why leadership could not be taken, as logged.
  absl::Time no_lead_logged_at_ = absl::InfinitePast();  // When no_lead_ was logged.
  absl::Time not_before_ = absl::InfinitePast();         // Time of the next attempt to lead.
};

}  // namespace fsdpd
