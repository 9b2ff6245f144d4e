// Which rank waits for which rendezvous value. Ranks choose request numbers each for themselves; on the way
// to the coordinator they get numbers that are unique in this agent's life, so that a value that comes twice
// or late (after a reconnect) finds either its rank or nobody.
//
// Thread safety: none.
#pragma once

#include <absl/status/status.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "agent/attempt.h"
#include "proto/fsdpd/v1/rank.pb.h"

namespace fsdpd {

// A rank's own fault: INVALID_ARGUMENT for an empty key or one or a value over its bound.
absl::Status CheckStoreSet(const v1::StoreSet& set);
absl::Status CheckStoreKey(const std::string& key);

class RendezvousRelay {
 public:
  struct Waiter {
    RankId rank;
    int64_t request = 0;  // The rank's own number.
  };

  int64_t Ask(const RankId& rank, int64_t request);
  std::optional<Waiter> Answer(int64_t relayed);  // Once per Ask.
  void Forget(const RankId& rank);

 private:
  int64_t next_ = 1;
  std::map<int64_t, Waiter> waiting_;
};

}  // namespace fsdpd
