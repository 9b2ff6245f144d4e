#include "coordinator/slot_count.h"

#include <algorithm>
#include <set>

namespace fsdpd {

NodeSlots IdleSlots(const NodeView& node) {
  NodeSlots slots;
  slots.name = node.info.node();
  slots.device = node.info.device();
  slots.slots = node.info.slots();
  slots.bytes_per_slot = node.info.memory_bytes_per_slot();
  slots.env.insert(node.info.allowed_env().begin(), node.info.allowed_env().end());
  slots.plugins = node.info.plugin_dirs_size() > 0;
  for (int device = 0; device < slots.slots; ++device) slots.free_devices.push_back(device);
  return slots;
}

std::vector<NodeSlots> IdleSlots(const std::vector<NodeView>& nodes) {
  std::vector<NodeSlots> idle;
  for (const NodeView& node : nodes) {
    if (node.connected) idle.push_back(IdleSlots(node));
  }
  return idle;
}

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
    NodeSlots slots = IdleSlots(view);
    slots.jobs = holders[slots.name];
    const std::set<int>& held = taken[slots.name];
    slots.free_devices.erase(std::remove_if(slots.free_devices.begin(), slots.free_devices.end(),
                                            [&](int device) { return held.count(device) != 0; }),
                             slots.free_devices.end());
    all.push_back(std::move(slots));
  }
  return all;
}

}  // namespace fsdpd
