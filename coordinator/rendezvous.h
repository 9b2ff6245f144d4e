// Where the ranks of an attempt find each other: a map of keys to bytes per (job, attempt), and those who
// wait for a key. The reconciler opens an attempt when it launches it and closes it when it has ended; what
// comes for an attempt that is not open is stale and is refused.
//
// A waiter is called once, without a lock held, by the thread that sets the key, or at once when it is there.
// A waiter's owner (an agent's stream) is forgotten with Forget(): its agent asks again after it reconnected.
//
// Thread-safe. Errors: FAILED_PRECONDITION for an attempt that is not open, ALREADY_EXISTS for a key set
// twice with different values, INVALID_ARGUMENT and RESOURCE_EXHAUSTED for the bounds of base/limits.h.
#pragma once

#include <absl/status/status.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "coordinator/attempt_ref.h"

namespace fsdpd {

class Rendezvous {
 public:
  using Waiter = std::function<void(const std::string& value)>;

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
  using Keys = std::map<std::string, Entry>;

  absl::Status CheckRoom(const Keys& keys, const std::string& key) const;

  Mutex mutex_;
  std::map<AttemptRef, Keys> attempts_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace fsdpd
