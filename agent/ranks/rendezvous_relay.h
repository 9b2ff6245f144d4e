// Mapping of rendezvous requests to ranks. Each rank numbers its requests itself; toward the coordinator they
// get numbers that are unique in this run of the agent, so that a value that arrives twice or late (after a
// reconnect) finds either its rank or no entry.
//
// It also limits how much a rank may leave with the agent, which retains it until the attempt has ended: a
// new stream must carry it again (outbox.h), or the agent answers from it (local_rendezvous.h).
//
// Not thread-safe. Errors are violations by a rank: INVALID_ARGUMENT for an empty key, or a key or value over
// its size limit; RESOURCE_EXHAUSTED beyond the limits per rank.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "agent/launch/attempt.h"
#include "proto/fsdpd/v1/rank.pb.h"

namespace fsdpd {

class RendezvousRelay {
 public:
  struct Waiter {
    RankId rank;
    int64_t request = 0;  // Number that the rank chose.
  };

  // Limit of keys and values that a rank sets in one attempt: many times its addresses.
  static constexpr int64_t kMaxRankBytes = 32 << 20;
  // Limit of open requests. A rank requests one key at a time per communicator; abandoned requests remain
  // open.
  static constexpr int kMaxOpenGets = 1 << 14;

  absl::Status Set(const RankId& rank, const v1::StoreSet& set);
  absl::StatusOr<int64_t> Ask(const RankId& rank, const v1::StoreGet& get);  // Returns the number to send.
  std::optional<Waiter> Answer(int64_t relayed);                             // Once per Ask.
  void Forget(const RankId& rank);

 private:
  struct Share {
    int64_t set_bytes = 0;
    int open_gets = 0;
  };

  int64_t next_ = 1;
  std::map<int64_t, Waiter> waiting_;
  std::map<RankId, Share> shares_;
};

}  // namespace fsdpd
