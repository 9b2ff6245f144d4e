#include "agent/ranks/local_rendezvous.h"

#include <absl/strings/str_cat.h>

#include <utility>

#include "base/check.h"
#include "base/limits.h"

namespace fsdpd {

absl::StatusOr<LocalRendezvous::Entry*> LocalRendezvous::EntryFor(const std::string& key) {
  const auto known = entries_.find(key);
  if (known != entries_.end()) return &known->second;
  if (entries_.size() < static_cast<size_t>(kMaxRendezvousKeys)) return &entries_[key];
  return absl::ResourceExhaustedError(absl::StrCat("more than ", kMaxRendezvousKeys, " rendezvous keys"));
}

absl::StatusOr<std::vector<int64_t>> LocalRendezvous::Set(const std::string& key, const std::string& value) {
  FSDPD_ASSIGN_OR_RETURN(Entry* const entry, EntryFor(key));
  if (entry->set && entry->value != value) {
    return absl::InvalidArgumentError(
        absl::StrCat("rendezvous key '", key, "' was set twice with different values"));
  }
  entry->set = true;
  entry->value = value;
  return std::exchange(entry->waiting, {});
}

absl::StatusOr<const std::string*> LocalRendezvous::Get(const std::string& key, int64_t request) {
  FSDPD_ASSIGN_OR_RETURN(Entry* const entry, EntryFor(key));
  if (entry->set) return &entry->value;
  entry->waiting.push_back(request);
  return nullptr;
}

}  // namespace fsdpd
