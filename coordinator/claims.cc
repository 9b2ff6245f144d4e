#include "coordinator/claims.h"

#include <algorithm>
#include <utility>

namespace fsdpd {
namespace {

void TakeOut(const PlaceRequest& request, std::vector<NodeSlots>* nodes) {
  for (NodeSlots& node : *nodes) {
    if (node.free_devices.empty() || !CouldTake(request, node)) continue;
    const auto free = static_cast<int64_t>(node.free_devices.size());
    node.free_devices.resize(std::max<int64_t>(0, free - request.ranks_per_node));
  }
}

}  // namespace

Claims::Claims(std::vector<NodeSlots> now) : now_(std::move(now)), unclaimed_(now_), lendable_(now_) {}

void Claims::Add(const std::string& job, const PlaceRequest& request, bool firm) {
  claims_.push_back({job, request, firm});
  TakeOut(request, &unclaimed_);
  if (firm) TakeOut(request, &lendable_);
}

void Claims::Renew(std::vector<NodeSlots> now) {
  now_ = std::move(now);
  unclaimed_ = lendable_ = now_;
  for (const Claim& claim : claims_) {
    TakeOut(claim.request, &unclaimed_);
    if (claim.firm) TakeOut(claim.request, &lendable_);
  }
}

std::string Claims::Ahead(const PlaceRequest& request) const {
  for (const Claim& claim : claims_) {
    const auto both = [&](const NodeSlots& node) {
      return CouldTake(request, node) && CouldTake(claim.request, node);
    };
    if (std::any_of(now_.begin(), now_.end(), both)) return claim.job;
  }
  return "";
}

std::vector<NodeSlots> Claims::Without(std::vector<NodeSlots> nodes) const {
  for (const Claim& claim : claims_) TakeOut(claim.request, &nodes);
  return nodes;
}

}  // namespace fsdpd
