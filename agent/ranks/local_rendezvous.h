// Rendezvous store of an attempt whose ranks are all on this node. The agent answers them itself, so such a
// job starts, saves, commits and exits even if the coordinator is away. For attempts that span nodes, the
// coordinator holds the store (coordinator/attempt/rendezvous.h). rendezvous_relay.h maps requests to ranks.
//
// The store lives as long as its attempt, like relayed values (outbox.h). A coordinator that restarts does
// not need its content: no other node requests these keys.
//
// Not thread-safe. Errors are violations by a rank: INVALID_ARGUMENT for a key that is set twice with
// different values, RESOURCE_EXHAUSTED beyond kMaxRendezvousKeys. The relay checks sizes.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace fsdpd {

class LocalRendezvous {
 public:
  // Returns the requests that waited for this key; answer each of them with `value`.
  absl::StatusOr<std::vector<int64_t>> Set(const std::string& key, const std::string& value);
  // Returns null if the key is not set: `request` then waits for it. The pointer is valid until this object
  // is destroyed.
  absl::StatusOr<const std::string*> Get(const std::string& key, int64_t request);

 private:
  struct Entry {
    bool set = false;
    std::string value;
    std::vector<int64_t> waiting;
  };
  absl::StatusOr<Entry*> EntryFor(const std::string& key);

  std::map<std::string, Entry> entries_;
};

}  // namespace fsdpd
