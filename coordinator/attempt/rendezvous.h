// Key-value store in which the ranks of an attempt find each other: a map of keys to bytes per (job,
// attempt), with waiters. The reconciler opens an attempt at its launch and closes it at its end. Requests
// for an attempt that is not open are stale and rejected.
//
// A waiter is called once, without a lock held: by the thread that sets the key, or immediately if the key is
// set. Forget() drops the waiters of an owner (an agent's stream); the agent asks again after it reconnects.
//
// Thread-safe. Errors: FAILED_PRECONDITION for an attempt that is not open, ALREADY_EXISTS for a key that has
// another value, INVALID_ARGUMENT and RESOURCE_EXHAUSTED for the limits here and in base/limits.h.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "coordinator/job/attempt_ref.h"

namespace fsdpd {

// Per attempt: fits the addresses of thousands of ranks in every group, and bounds the coordinator's memory.
constexpr size_t kMaxRendezvousBytes = 256 << 20;

class Rendezvous {
 public:
  using Waiter = std::function<void(const std::string& value)>;

  explicit Rendezvous(size_t max_bytes = kMaxRendezvousBytes) : max_bytes_(max_bytes) {}

  void Open(const AttemptRef& attempt);   // Idempotent.
  void Close(const AttemptRef& attempt);  // Drops values and waiters.

  absl::Status Set(const AttemptRef& attempt, const std::string& key, const std::string& value);
  // `owner` is the generation of the waiting stream.
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
    size_t bytes = 0;  // Size of keys, values and waiters.
  };

  // Returns the entry of `key` if `bytes` more are within the limit.
  absl::StatusOr<Entry*> EntryFor(Attempt* attempt, const std::string& key, size_t bytes) const;

  const size_t max_bytes_;
  Mutex mutex_;
  std::map<AttemptRef, Attempt> attempts_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace fsdpd
