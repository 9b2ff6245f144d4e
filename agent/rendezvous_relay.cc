#include "agent/rendezvous_relay.h"

#include <absl/strings/str_cat.h>

#include <iterator>

#include "base/limits.h"

namespace fsdpd {
namespace {

constexpr size_t kMaxKeyBytes = 256;  // "gather/pair/12345-12346" and the like.

}  // namespace

absl::Status CheckStoreKey(const std::string& key) {
  if (key.empty()) return absl::InvalidArgumentError("a rendezvous key is empty");
  if (key.size() <= kMaxKeyBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("a rendezvous key has ", key.size(), " bytes; at most ", kMaxKeyBytes, " are allowed"));
}

absl::Status CheckStoreSet(const v1::StoreSet& set) {
  absl::Status status = CheckStoreKey(set.key());
  if (!status.ok() || set.value().size() <= kMaxRendezvousValueBytes) return status;
  return absl::InvalidArgumentError(absl::StrCat("rendezvous value of key ", set.key(), " has ",
                                                 set.value().size(), " bytes; at most ",
                                                 kMaxRendezvousValueBytes, " are allowed"));
}

int64_t RendezvousRelay::Ask(const RankId& rank, int64_t request) {
  waiting_[next_] = {rank, request};
  return next_++;
}

std::optional<RendezvousRelay::Waiter> RendezvousRelay::Answer(int64_t relayed) {
  const auto it = waiting_.find(relayed);
  if (it == waiting_.end()) return std::nullopt;
  Waiter waiter = it->second;
  waiting_.erase(it);
  return waiter;
}

void RendezvousRelay::Forget(const RankId& rank) {
  for (auto it = waiting_.begin(); it != waiting_.end();) {
    it = it->second.rank == rank ? waiting_.erase(it) : std::next(it);
  }
}

}  // namespace fsdpd
