#include "coordinator/schedule/preemption.h"

#include <algorithm>
#include <tuple>

namespace fsdpd {
namespace {

std::vector<NodeSlots> Without(std::vector<NodeSlots> nodes, const std::vector<const Occupant*>& gone) {
  for (NodeSlots& node : nodes) {
    if (node.disconnected) continue;  // None of its slots is free.
    for (const Occupant* occupant : gone) {
      const auto held = occupant->devices.find(node.name);
      if (held == occupant->devices.end()) continue;
      node.free_devices.insert(node.free_devices.end(), held->second.begin(), held->second.end());
    }
    std::sort(node.free_devices.begin(), node.free_devices.end());
  }
  return nodes;
}

}  // namespace

Victims ChooseVictims(const PlaceRequest& request, int64_t priority, const std::vector<NodeSlots>& nodes,
                      const Reservations& ahead, const std::vector<Occupant>& occupants) {
  std::vector<const Occupant*> leaving, able, chosen;
  for (const Occupant& each : occupants) {
    if (each.leaves) leaving.push_back(&each);
    if (!each.leaves && each.may_leave && (each.backfilled || each.priority < priority))
      able.push_back(&each);
  }
  if (leaving.empty() && able.empty()) return {};
  // Slots of jobs that are already leaving count as free: if these suffice, no job is preempted.
  const std::vector<NodeSlots> soon = Without(nodes, leaving);
  const auto enough = [&](const std::vector<const Occupant*>& gone) {
    return Place(request, ahead.Without(Without(soon, gone))).placed();
  };
  if (enough({})) return {/*suffices=*/true, {}};
  if (able.empty() || !enough(able)) return {};
  std::sort(able.begin(), able.end(), [](const Occupant* a, const Occupant* b) {
    return std::make_tuple(a->priority, -a->start_unix_nanos, a->job) <
           std::make_tuple(b->priority, -b->start_unix_nanos, b->job);
  });
  // Greedy: adds the cheapest victims until the request fits.
  for (const Occupant* each : able) {
    chosen.push_back(each);
    if (enough(chosen)) break;
  }
  // Earlier picks may be unnecessary, because they free slots on other nodes: drop them, the most valuable
  // jobs first.
  for (size_t i = chosen.size(); i-- > 0;) {
    std::vector<const Occupant*> fewer = chosen;
    fewer.erase(fewer.begin() + static_cast<int64_t>(i));
    if (enough(fewer)) chosen = std::move(fewer);
  }
  Victims victims;
  victims.suffices = true;
  for (const Occupant* each : chosen) victims.leave.push_back(each->job);
  return victims;
}

}  // namespace fsdpd
