#include "agent/ranks/rendezvous_relay.h"

#include <absl/strings/str_cat.h>

#include <iterator>

#include "base/check.h"
#include "base/limits.h"

namespace fsdpd {
namespace {

constexpr size_t kMaxKeyBytes = 256;  // "gather/pair/12345-12346" and the like.

absl::Status CheckKey(const std::string& key) {
  if (key.empty()) return absl::InvalidArgumentError("rendezvous key: empty");
  if (key.size() <= kMaxKeyBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("rendezvous key: too long (got ", key.size(), " bytes, want at most ", kMaxKeyBytes, ")"));
}

}  // namespace

absl::Status RendezvousRelay::Set(const RankId& rank, const v1::StoreSet& set) {
  FSDPD_RETURN_IF_ERROR(CheckKey(set.key()));
  if (set.value().size() > kMaxRendezvousValueBytes) {
    return absl::InvalidArgumentError(absl::StrCat("rendezvous value of key ", set.key(), " has ",
                                                   set.value().size(), " bytes; at most ",
                                                   kMaxRendezvousValueBytes, " are allowed"));
  }
  Share& share = shares_[rank];
  const int64_t bytes = share.set_bytes + static_cast<int64_t>(set.key().size() + set.value().size());
  if (bytes > kMaxRankBytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("rendezvous key ", set.key(), ": over the limit of ", kMaxRankBytes, " bytes per rank"));
  }
  share.set_bytes = bytes;
  return absl::OkStatus();
}

absl::StatusOr<int64_t> RendezvousRelay::Ask(const RankId& rank, const v1::StoreGet& get) {
  FSDPD_RETURN_IF_ERROR(CheckKey(get.key()));
  Share& share = shares_[rank];
  if (share.open_gets == kMaxOpenGets) {
    return absl::ResourceExhaustedError(absl::StrCat("rendezvous key ", get.key(), ": over the limit of ",
                                                     kMaxOpenGets, " open requests per rank"));
  }
  ++share.open_gets;
  waiting_[next_] = {rank, get.request()};
  return next_++;
}

std::optional<RendezvousRelay::Waiter> RendezvousRelay::Answer(int64_t relayed) {
  const auto it = waiting_.find(relayed);
  if (it == waiting_.end()) return std::nullopt;
  Waiter waiter = it->second;
  waiting_.erase(it);
  --shares_[waiter.rank].open_gets;
  return waiter;
}

void RendezvousRelay::Forget(const RankId& rank) {
  shares_.erase(rank);
  for (auto it = waiting_.begin(); it != waiting_.end();) {
    it = it->second.rank == rank ? waiting_.erase(it) : std::next(it);
  }
}

}  // namespace fsdpd
