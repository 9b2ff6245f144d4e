#include "coordinator/rendezvous.h"

#include <absl/strings/str_cat.h>

#include <algorithm>

#include "base/check.h"
#include "base/limits.h"

namespace fsdpd {
namespace {

// Ranks that wait for one key: at most all of a job, once per reconnect until the old stream is forgotten.
constexpr size_t kMaxWaitersPerKey = 2 * kMaxWorld;
constexpr size_t kMaxKeyBytes = 1024;

absl::Status NotOpen(const AttemptRef& attempt) {
  return absl::FailedPreconditionError(
      absl::StrCat("attempt ", attempt.attempt, " of job ", attempt.job, " is not running"));
}

}  // namespace

void Rendezvous::Open(const AttemptRef& attempt) {
  MutexLock lock(&mutex_);
  attempts_[attempt];
}

void Rendezvous::Close(const AttemptRef& attempt) {
  Keys dropped;  // Destroyed after the lock: waiters may hold the last reference to a stream.
  MutexLock lock(&mutex_);
  const auto it = attempts_.find(attempt);
  if (it == attempts_.end()) return;
  dropped.swap(it->second);
  attempts_.erase(it);
}

absl::Status Rendezvous::CheckRoom(const Keys& keys, const std::string& key) const {
  if (key.empty() || key.size() > kMaxKeyBytes) {
    return absl::InvalidArgumentError(absl::StrCat("a rendezvous key has 1 to ", kMaxKeyBytes, " bytes"));
  }
  if (static_cast<int>(keys.size()) >= kMaxRendezvousKeys && keys.count(key) == 0) {
    return absl::ResourceExhaustedError(absl::StrCat("more than ", kMaxRendezvousKeys, " rendezvous keys"));
  }
  return absl::OkStatus();
}

absl::Status Rendezvous::Set(const AttemptRef& attempt, const std::string& key, const std::string& value) {
  if (static_cast<int>(value.size()) > kMaxRendezvousValueBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("rendezvous value of '", key, "' is larger than ", kMaxRendezvousValueBytes, " bytes"));
  }
  std::vector<std::pair<int64_t, Waiter>> ready;
  {
    MutexLock lock(&mutex_);
    const auto it = attempts_.find(attempt);
    if (it == attempts_.end()) return NotOpen(attempt);
    FSDPD_RETURN_IF_ERROR(CheckRoom(it->second, key));
    Entry& entry = it->second[key];
    if (entry.set) {
      if (entry.value == value) return absl::OkStatus();
      return absl::AlreadyExistsError(
          absl::StrCat("rendezvous key '", key, "' was set twice with different values"));
    }
    entry.set = true;
    entry.value = value;
    ready.swap(entry.waiters);
  }
  for (const auto& waiter : ready) waiter.second(value);
  return absl::OkStatus();
}

absl::Status Rendezvous::Get(const AttemptRef& attempt, const std::string& key, int64_t owner,
                             Waiter waiter) {
  std::string value;
  {
    MutexLock lock(&mutex_);
    const auto it = attempts_.find(attempt);
    if (it == attempts_.end()) return NotOpen(attempt);
    FSDPD_RETURN_IF_ERROR(CheckRoom(it->second, key));
    Entry& entry = it->second[key];
    if (!entry.set) {
      if (entry.waiters.size() >= kMaxWaitersPerKey) {
        return absl::ResourceExhaustedError(
            absl::StrCat("too many ranks wait for rendezvous key '", key, "'"));
      }
      entry.waiters.emplace_back(owner, std::move(waiter));
      return absl::OkStatus();
    }
    value = entry.value;
  }
  waiter(value);
  return absl::OkStatus();
}

void Rendezvous::Forget(int64_t owner) {
  std::vector<std::pair<int64_t, Waiter>> dropped;
  MutexLock lock(&mutex_);
  for (auto& [attempt, keys] : attempts_) {
    for (auto& [key, entry] : keys) {
      auto& waiters = entry.waiters;
      const auto gone = std::stable_partition(waiters.begin(), waiters.end(),
                                              [&](const auto& waiter) { return waiter.first != owner; });
      std::move(gone, waiters.end(), std::back_inserter(dropped));
      waiters.erase(gone, waiters.end());
    }
  }
}

}  // namespace fsdpd
