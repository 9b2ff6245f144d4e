// Where the ranks of an attempt find each other: a map of keys to bytes per (job, attempt), and those who
// wait for a key. The reconciler opens an attempt when it launches it and closes it when it has ended; what
// comes for an attempt that is not open is stale and is refused.
//
// A waiter is called once, without a lock held, by the thread that sets the key, or at once when it is there.
// A waiter's owner (an agent's stream) is forgotten with Forget(): its agent asks again after it reconnected.
//
// Thread-safe. Errors: FAILED_PRECONDITION for an attempt that is not open, ALREADY_EXISTS for a key set
// twice with different values, INVALID_ARGUMENT and RESOURCE_EXHAUSTED for the bounds here and in
// base/limits.h.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "coordinator/attempt_ref.h"

namespace fsdpd {

// Per attempt: the addresses of thousands of ranks in every group, and a bound for the coordinator's memory.
constexpr size_t kMaxRendezvousBytes = 256 << 20;

class Rendezvous {
 public:
  using Waiter = std::function<void(const std::string& value)>;

  explicit Rendezvous(size_t max_bytes = kMaxRendezvousBytes) : max_bytes_(max_bytes) {}

  void Open(const AttemptRef& attempt);   // Idempotent.
  void Close(const AttemptRef& attempt);  // Drops values and waiters.

  absl::Status Set(const AttemptRef& attempt, const std::string& key, const std::string& value);
  // `owner`: the epoch of the stream that waits.
  absl::Status Get(const AttemptRef& attempt, const std::string& key, int64_t owner, Waiter waiter);
  void Forget(int64_t owner);

 private:
  struct Entry {
    bool set = false;
    std::string value;
    std::vector<std::pair<int64_t, Waiter>> waiters;
  };
  struct Attempt {
    std::map<std::string, Entry> keys;
    size_t bytes = 0;  // Of keys, values and waiters.
  };

  // The entry of `key`, with room for `bytes` more.
  absl::StatusOr<Entry*> EntryFor(Attempt* attempt, const std::string& key, size_t bytes) const;

  const size_t max_bytes_;
  Mutex mutex_;
  std::map<AttemptRef, Attempt> attempts_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace fsdpd
