#include "coordinator/slot_count.h"

#include <algorithm>
#include <set>

namespace fsdpd {

std::vector<NodeSlots> CountSlots(const std::vector<NodeView>& nodes,
                                  const std::map<AttemptRef, AttemptFacts>& attempts) {
  std::map<std::string, std::set<int>> taken;
  std::map<std::string, std::vector<std::string>> holders;
  for (const auto& [ref, facts] : attempts) {
    for (const NodePart& part : facts.parts) {
      if (part.stopped) continue;
      taken[part.node].insert(part.devices.begin(), part.devices.end());
      holders[part.node].push_back(ref.job);
    }
  }
  std::vector<NodeSlots> all;
  for (const NodeView& view : nodes) {
    NodeSlots slots;
    slots.name = view.info.node();
    slots.device = view.info.device();
    slots.slots = view.info.slots();
    slots.jobs = holders[slots.name];
    for (int device = 0; device < slots.slots; ++device) {
      if (taken[slots.name].count(device) == 0) slots.free_devices.push_back(device);
    }
    all.push_back(std::move(slots));
  }
  return all;
}

}  // namespace fsdpd
