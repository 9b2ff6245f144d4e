// Leader election in etcd. The leader is the coordinator whose key is in etcd, under a lease that it renews.
// Each leadership has a generation (state_store.h), which is larger than all earlier ones.
//
// The deadline of a lease is measured by this machine's clock from the time at which the renewal was sent, so
// a leadership ends here before etcd lets another coordinator lead. A process that was suspended may consider
// itself the leader for a moment after that. In that time etcd refuses its writes (etcd_store.h), and agents
// ignore it by its generation (agent/link/attachment.h).
//
// Keys below `prefix`: "leader", the address of the leader, and "generation".
//
// Call order: TryTake() ... held() ...; the destructor releases the lease, so the next leader need not wait
// for its end. Thread-safe.
#pragma once

#include <absl/status/statusor.h>
#include <absl/time/time.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "base/clock.h"
#include "base/mutex.h"
#include "coordinator/store/etcd_client.h"

namespace fsdpd {

class Leadership {
 public:
  struct Options {
    std::string prefix;   // "/fsdpd/"
    std::string address;  // Address of this coordinator for clients and agents.
    absl::Duration lease = absl::Seconds(5);
    Clock* clock = Clock::Real();
  };

  // The leader's address; "" if there is no leader.
  static absl::StatusOr<std::string> Leader(EtcdClient* etcd, const std::string& prefix);

  // nullptr if another coordinator leads. `etcd` outlives the result. `lost` is called at most once, from a
  // separate thread, if the leadership ends before the destructor releases it.
  static absl::StatusOr<std::unique_ptr<Leadership>> TryTake(EtcdClient* etcd, const Options& options,
                                                             std::function<void()> lost);
  ~Leadership();

  int64_t generation() const { return generation_; }
  bool held() const { return options_.clock->Now() < held_until(); }
  absl::Time held_until() const;  // Renewals extend it. InfinitePast once the leadership is lost.
  void Lose(const std::string& why);

  // The condition that every transaction of the leader must include.
  etcdserverpb::Compare Fence() const;

 private:
  Leadership(EtcdClient* etcd, Options options, std::function<void()> lost);
  absl::Status Count();
  bool Extend(absl::Time asked);
  void Renew();
  bool Wait(absl::Duration duration);

  EtcdClient* const etcd_;
  const Options options_;
  const std::function<void()> lost_;
  int64_t lease_ = 0;
  int64_t create_revision_ = 0;  // Revision of the key "leader".
  int64_t generation_ = 0;

  mutable Mutex mutex_;
  CondVar changed_;
  absl::Time until_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  bool over_ ABSL_GUARDED_BY(mutex_) = false;
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace fsdpd
