#include "fsdp/comm/store.h"

#include <absl/strings/str_format.h>

#include <chrono>

namespace fsdpd {

absl::StatusOr<std::string> GetFrom(Store* store, int64_t rank, const std::string& key,
                                    absl::Duration timeout) {
  absl::StatusOr<std::string> value = store->Get(key, timeout);
  if (!absl::IsDeadlineExceeded(value.status())) return value;
  return absl::DeadlineExceededError(
      absl::StrFormat("rank %d did not answer and may be gone: %s", rank, value.status().message()));
}

absl::Status LocalStore::Set(const std::string& key, const std::string& value) {
  MutexLock lock(&mutex_);
  const auto [entry, inserted] = values_.emplace(key, value);
  if (!inserted && entry->second != value) {
    return absl::AlreadyExistsError(absl::StrFormat("key %s: already set to another value", key));
  }
  changed_.SignalAll();
  return absl::OkStatus();
}

absl::StatusOr<std::string> LocalStore::Get(const std::string& key, absl::Duration timeout) {
  // Steady clock: setting the wall clock back must not extend the wait.
  const auto start = std::chrono::steady_clock::now();
  MutexLock lock(&mutex_);
  while (true) {
    const auto entry = values_.find(key);
    if (entry != values_.end()) return entry->second;
    const absl::Duration left = timeout - absl::FromChrono(std::chrono::steady_clock::now() - start);
    if (left <= absl::ZeroDuration()) {
      return absl::DeadlineExceededError(
          absl::StrFormat("key %s: not set within %s", key, absl::FormatDuration(timeout)));
    }
    if (left == absl::InfiniteDuration()) {
      changed_.Wait(&mutex_);
    } else {
      changed_.WaitFor(&mutex_, absl::ToChronoNanoseconds(left));
    }
  }
}

}  // namespace fsdpd
