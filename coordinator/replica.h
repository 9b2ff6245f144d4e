// One of several coordinators of one state in etcd: it stands by, leads when it is the one, and stands by
// again when that is over. It serves on one address throughout; in between nobody answers there while the old
// front stops (server.h) and the new one reads its state: half a second and more. Its own files are read at
// the start, and a fault that one gets later changes nothing.
//
// Start() returns when it serves; Run() returns at the stop. What keeps it from leading or from its port is
// said once, and tried again: others may lead meanwhile. One thread.
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

class Leadership;

class Replica {
 public:
  // Waits so long for the stop, and says whether it came; also when it is asked again.
  using StopWaiter = std::function<bool(absl::Duration)>;

  static absl::StatusOr<std::unique_ptr<Replica>> Start(const ReplicaOptions& options);
  ~Replica();

  const std::string& address() const;    // "host:port", with the port that was picked.
  std::string metrics_endpoint() const;  // Likewise; "" where it is served nowhere.
  void Run(const StopWaiter& stops);

 private:
  class Standby;
  Replica(const ReplicaOptions& options, ServerFiles files);
  absl::Status StandBy();
  // False where the stop came first.
  bool StandByAgain(const StopWaiter& stops);
  // The lead, where nobody has it; null where somebody does.
  std::unique_ptr<Leadership> TryLead(std::atomic<bool>* lost);
  void SayNoLead(const absl::Status& why);
  absl::Time Now() const { return options_.server.clock->Now(); }
  absl::Status Lead(const StopWaiter& stops, Leadership* leadership, const std::atomic<bool>& lost);

  ReplicaOptions options_;
  const ServerFiles files_;
  std::shared_ptr<EtcdClient> etcd_;                  // The metrics page reads its certificates.
  std::unique_ptr<Standby> standby_;                  // Null while it leads.
  bool etcd_away_ = false;                            // As it was said.
  absl::Time etcd_read_;                              // When it has answered last.
  std::string why_none_;                              // As LeaderSeen has it.
  absl::StatusCode no_lead_ = absl::StatusCode::kOk;  // Why it could not take it, as it was said,
  absl::Time no_lead_said_ = absl::InfinitePast();    // and when.
  absl::Time not_before_ = absl::InfinitePast();      // Does it try for the lead.
};

}  // namespace fsdpd
