#include "coordinator/schedule/reservations.h"

#include <algorithm>
#include <utility>

namespace fsdpd {
namespace {

// Takes the slots of one reservation: on each node that could take its ranks, as many as it has ranks there.
void RemoveReserved(const PlaceRequest& request, std::vector<NodeSlots>* nodes) {
  for (NodeSlots& node : *nodes) {
    if (node.free_devices.empty() || !CouldTake(request, node)) continue;
    const auto free = static_cast<int64_t>(node.free_devices.size());
    node.free_devices.resize(std::max<int64_t>(0, free - request.ranks_per_node));
  }
}

}  // namespace

Reservations::Reservations(std::vector<NodeSlots> now)
    : now_(std::move(now)), unreserved_(now_), backfillable_(now_) {}

void Reservations::Add(const std::string& job, const PlaceRequest& request, bool firm) {
  reservations_.push_back({job, request, firm});
  RemoveReserved(request, &unreserved_);
  if (firm) RemoveReserved(request, &backfillable_);
}

void Reservations::Renew(std::vector<NodeSlots> now) {
  now_ = std::move(now);
  unreserved_ = backfillable_ = now_;
  for (const Reservation& reservation : reservations_) {
    RemoveReserved(reservation.request, &unreserved_);
    if (reservation.firm) RemoveReserved(reservation.request, &backfillable_);
  }
}

std::string Reservations::Ahead(const PlaceRequest& request) const {
  for (const Reservation& reservation : reservations_) {
    const auto both = [&](const NodeSlots& node) {
      return CouldTake(request, node) && CouldTake(reservation.request, node);
    };
    if (std::any_of(now_.begin(), now_.end(), both)) return reservation.job;
  }
  return "";
}

std::vector<NodeSlots> Reservations::Without(std::vector<NodeSlots> nodes) const {
  for (const Reservation& reservation : reservations_) RemoveReserved(reservation.request, &nodes);
  return nodes;
}

}  // namespace fsdpd
