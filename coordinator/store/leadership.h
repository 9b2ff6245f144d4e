// Which of several coordinators acts: the one whose key is in etcd, under a lease that it renews. A
// leadership has a number, its generation (state_store.h), larger than all before it.
//
// It is over when the lease could not be renewed in time, by this machine's own clock and counted from when
// the renewal was asked for, so that it ends here before etcd lets another one begin. A process that stood
// still meanwhile may still take itself for the leader for a moment: nothing that it stores then is taken
// (etcd_store.h), and no agent obeys it, as streams are numbered by the generation (agent/attachment.h).
//
// Keys below `prefix`: "leader", the address at which the leader is reached, and "generation".
//
// Call order: TryTake() ... held() ...; the destructor gives it back, so that the next one need not wait.
// Thread-safe.
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
    std::string address;  // At which clients and agents reach this coordinator.
    absl::Duration lease = absl::Seconds(5);
    Clock* clock = Clock::Real();
  };

  // Who leads; "" when nobody does.
  static absl::StatusOr<std::string> Leader(EtcdClient* etcd, const std::string& prefix);

  // Null where another one leads. `etcd` outlives it. `lost`: called once, by a thread of its own, when it is
  // over before it was given back.
  static absl::StatusOr<std::unique_ptr<Leadership>> TryTake(EtcdClient* etcd, const Options& options,
                                                             std::function<void()> lost);
  ~Leadership();

  int64_t generation() const { return generation_; }
  bool held() const { return options_.clock->Now() < held_until(); }
  absl::Time held_until() const;  // As of now: renewals move it on. InfinitePast once it is over.
  void Lose(const std::string& why);

  // What each transaction of the leader's has to compare.
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
  int64_t create_revision_ = 0;  // Of the key.
  int64_t generation_ = 0;

  mutable Mutex mutex_;
  CondVar changed_;
  absl::Time until_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  bool over_ ABSL_GUARDED_BY(mutex_) = false;
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace fsdpd
