// The rendezvous of an attempt all of whose ranks are on this node: the agent answers them itself, so that
// such a job starts, saves, commits and leaves whether the coordinator is there or not. Of an attempt that
// spans nodes the coordinator holds it (coordinator/rendezvous.h). Who waits is rendezvous_relay.h's to know.
//
// It lives with its attempt, as values that were relayed would (outbox.h). A coordinator that restarts needs
// none of it: no other node asks for a key.
//
// Thread safety: none. Errors are a rank's own fault: INVALID_ARGUMENT for a key that is set twice with
// different values, RESOURCE_EXHAUSTED beyond kMaxRendezvousKeys. Sizes are the relay's to refuse.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace fsdpd {

class OwnRendezvous {
 public:
  // The requests that have waited for it: each is to be answered with `value`.
  absl::StatusOr<std::vector<int64_t>> Set(const std::string& key, const std::string& value);
  // Null: `request` waits for it. Valid until this goes.
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
