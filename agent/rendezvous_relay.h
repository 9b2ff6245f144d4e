// Which rank waits for which rendezvous value. Ranks choose request numbers each for themselves; here, and on
// the way to the coordinator, they get numbers that are unique in this agent's life, so that a value that
// comes twice or late (after a reconnect) finds either its rank or nobody.
//
// It also owns how much a rank may leave with its agent, which keeps all of it until the attempt has ended,
// as a new stream must carry it again (outbox.h), or as it answers by itself (own_rendezvous.h).
//
// Thread safety: none. Errors are a rank's own fault: INVALID_ARGUMENT for an empty key or one or a value
// over its bound, RESOURCE_EXHAUSTED for more than a rank's share.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "agent/attempt.h"
#include "proto/fsdpd/v1/rank.pb.h"

namespace fsdpd {

class RendezvousRelay {
 public:
  struct Waiter {
    RankId rank;
    int64_t request = 0;  // The rank's own number.
  };

  // What a rank sets in one attempt: many times its addresses.
  static constexpr int64_t kMaxRankBytes = 32 << 20;
  // A rank asks for one key at a time in each communicator; those that it gave up stay open.
  static constexpr int kMaxOpenGets = 1 << 14;

  absl::Status Set(const RankId& rank, const v1::StoreSet& set);
  absl::StatusOr<int64_t> Ask(const RankId& rank, const v1::StoreGet& get);  // The number on the way.
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
