#include "coordinator/attempt/slot_count.h"

#include <algorithm>
#include <set>
#include <unordered_map>

namespace fsdpd {
namespace {

void RemoveDevices(const std::set<int>& held, NodeSlots* slots) {
  std::vector<int>& free = slots->free_devices;
  free.erase(std::remove_if(free.begin(), free.end(), [&](int device) { return held.count(device) != 0; }),
             free.end());
}

}  // namespace

NodeSlots IdleSlots(const NodeView& node) {
  NodeSlots slots;
  slots.name = node.info.node();
  slots.device = node.info.device();
  slots.slots = node.info.slots();
  slots.bytes_per_slot = node.info.memory_bytes_per_slot();
  slots.host_bytes = node.info.host_memory_bytes();
  slots.env.insert(node.info.allowed_env().begin(), node.info.allowed_env().end());
  slots.plugin_dirs.assign(node.info.plugin_dirs().begin(), node.info.plugin_dirs().end());
  if (!slots.plugin_dirs.empty() && !node.info.plugin_dirs_as_given()) slots.plugin_dirs = {"/"};
  slots.labels = node.info.labels();
  slots.domain = node.info.nvlink_domain();
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

std::vector<NodeSlots> CountSlots(const std::vector<const NodeView*>& nodes,
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
  all.reserve(nodes.size());
  for (const NodeView* view : nodes) {
    NodeSlots slots = IdleSlots(*view);
    slots.jobs = holders[slots.name];
    RemoveDevices(taken[slots.name], &slots);
    all.push_back(std::move(slots));
  }
  return all;
}

std::map<std::string, int> CountFree(const std::vector<const NodeView*>& nodes,
                                     const std::vector<HeldDevices>& held) {
  std::unordered_map<std::string_view, std::vector<bool>> taken(2 * held.size());
  for (const auto& [node, devices] : held) {
    std::vector<bool>& there = taken[node];
    for (const int device : devices) {
      if (device < 0) continue;
      if (there.size() <= static_cast<size_t>(device)) there.resize(device + 1);
      there[device] = true;
    }
  }
  std::map<std::string, int> free;
  for (const NodeView* view : nodes) {
    const int slots = view->info.slots();
    int count = slots;
    if (const auto it = taken.find(view->info.node()); it != taken.end()) {
      const auto end = it->second.begin() + std::min<size_t>(slots, it->second.size());
      count -= static_cast<int>(std::count(it->second.begin(), end, true));
    }
    free.emplace_hint(free.end(), view->info.node(), count);
  }
  return free;
}

void TakeSlots(const AttemptFacts& facts, std::vector<NodeSlots>* slots) {
  std::map<std::string, const NodePart*> parts;
  for (const NodePart& part : facts.parts) parts[part.node] = &part;
  for (NodeSlots& node : *slots) {
    const auto it = parts.find(node.name);
    if (it == parts.end()) continue;
    RemoveDevices({it->second->devices.begin(), it->second->devices.end()}, &node);
    node.jobs.push_back(facts.ref.job);
    // Same order as CountSlots(), which visits attempts in order.
    std::sort(node.jobs.begin(), node.jobs.end());
  }
}

}  // namespace fsdpd
