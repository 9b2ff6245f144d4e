#include "coordinator/attempt/rendezvous.h"

#include <absl/strings/str_cat.h>

#include <algorithm>

#include "base/check.h"
#include "base/limits.h"

namespace fsdpd {
namespace {

// Waiters of one key: at most all ranks of a job, twice until the stream before a reconnect is forgotten.
constexpr size_t kMaxWaitersPerKey = 2 * kMaxWorld;
constexpr size_t kMaxKeyBytes = 1024;
// Approximate overhead of an entry or a waiter.
constexpr size_t kEntryBytes = 128;

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
  Attempt dropped;  // Destroyed after the lock is released: waiters may hold the last reference to a stream.
  MutexLock lock(&mutex_);
  const auto it = attempts_.find(attempt);
  if (it == attempts_.end()) return;
  std::swap(dropped, it->second);
  attempts_.erase(it);
}

absl::StatusOr<Rendezvous::Entry*> Rendezvous::EntryFor(Attempt* attempt, const std::string& key,
                                                        size_t bytes) const {
  if (key.empty() || key.size() > kMaxKeyBytes) {
    return absl::InvalidArgumentError(absl::StrCat("rendezvous key: invalid size (got ", key.size(),
                                                   " bytes, want 1 to ", kMaxKeyBytes, ")"));
  }
  const auto it = attempt->keys.find(key);
  const bool known = it != attempt->keys.end();
  if (!known && static_cast<int>(attempt->keys.size()) >= kMaxRendezvousKeys) {
    return absl::ResourceExhaustedError(absl::StrCat("more than ", kMaxRendezvousKeys, " rendezvous keys"));
  }
  if (!known) bytes += key.size() + kEntryBytes;
  if (attempt->bytes + bytes > max_bytes_) {
    return absl::ResourceExhaustedError(
        absl::StrCat("more than ", max_bytes_, " bytes of rendezvous keys and values"));
  }
  attempt->bytes += bytes;
  return known ? &it->second : &attempt->keys[key];
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
    Attempt& open = it->second;
    const auto old = open.keys.find(key);
    if (old != open.keys.end() && old->second.set) {
      if (old->second.value == value) return absl::OkStatus();
      return absl::AlreadyExistsError(
          absl::StrCat("rendezvous key '", key, "' was set twice with different values"));
    }
    FSDPD_ASSIGN_OR_RETURN(Entry* const entry, EntryFor(&open, key, value.size()));
    entry->set = true;
    entry->value = value;
    ready.swap(entry->waiters);
    open.bytes -= ready.size() * kEntryBytes;
  }
  // Without the lock, because a waiter pushes to a stream and may call back.
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
    Attempt& open = it->second;
    const auto known = open.keys.find(key);
    if (known == open.keys.end() || !known->second.set) {
      if (known != open.keys.end() && known->second.waiters.size() >= kMaxWaitersPerKey) {
        return absl::ResourceExhaustedError(
            absl::StrCat("too many ranks wait for rendezvous key '", key, "'"));
      }
      FSDPD_ASSIGN_OR_RETURN(Entry* const entry, EntryFor(&open, key, kEntryBytes));
      entry->waiters.emplace_back(owner, std::move(waiter));
      return absl::OkStatus();
    }
    value = known->second.value;
  }
  waiter(value);
  return absl::OkStatus();
}

void Rendezvous::Forget(int64_t owner) {
  std::vector<std::pair<int64_t, Waiter>> dropped;
  MutexLock lock(&mutex_);
  for (auto& [ref, attempt] : attempts_) {
    for (auto& [key, entry] : attempt.keys) {
      auto& waiters = entry.waiters;
      const auto gone = std::stable_partition(waiters.begin(), waiters.end(),
                                              [&](const auto& waiter) { return waiter.first != owner; });
      attempt.bytes -= static_cast<size_t>(waiters.end() - gone) * kEntryBytes;
      std::move(gone, waiters.end(), std::back_inserter(dropped));
      waiters.erase(gone, waiters.end());
    }
  }
}

}  // namespace fsdpd
