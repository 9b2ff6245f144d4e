// Presence of nodes: each node's registration and stream as of the last Read(), whether its agent is
// connected, expected or lost (agent_lease.h), and the time of the tick.
//
// Call order: BeginTick(); Read() after the events of the tick, and before a decision that needs the newest
// state; OnAttached() before any other event of a stream. Not thread-safe: used only by the reconciler's
// thread. Ownership: borrows the registry.
#pragma once

#include <absl/time/time.h>

#include <map>
#include <string>
#include <vector>

#include "coordinator/nodes/agent_lease.h"
#include "coordinator/nodes/node_registry.h"

namespace fsdpd {

class NodePresence {
 public:
  NodePresence(NodeRegistry* nodes, const AgentLease& lease) : nodes_(nodes), lease_(lease) {}

  absl::Duration BeginTick(absl::Time now) { return lease_.BeginTick(now); }  // As AgentLease.
  void Read() { nodes_->ReadInto(&views_); }
  void OnAttached(const std::string& node, int64_t generation) { attached_[node] = generation; }
  void Forget(const std::string& node) { attached_.erase(node); }

  const AgentLease& lease() const { return lease_; }
  absl::Time now() const { return lease_.now(); }    // Start of the tick, on the monotonic clock.
  bool Settled() const { return lease_.Settled(); }  // As AgentLease.
  const std::map<std::string, NodeView>& views() const { return views_; }
  const NodeView* Find(const std::string& node) const;  // Null: unknown node.
  Presence Of(const std::string& node) const;
  PresenceOf AsFunction() const {
    return [this](const std::string& node) { return Of(node); };
  }
  // Whether its hosted ranks are known too. Before that its slots may be in use.
  bool HasReported(const NodeView& view) const;
  int64_t StreamOf(const std::string& node) const { return attached_.at(node); }
  // Nodes that were lost with ranks of the job and have not registered since. The registry keeps the list
  // across restarts and clears it when the agent registers.
  std::vector<std::string> LostWithRanksOf(const std::string& job) const;

 private:
  NodeRegistry* const nodes_;
  AgentLease lease_;
  std::map<std::string, int64_t> attached_;  // Node -> generation of the stream of the last OnAttached().
  std::map<std::string, NodeView> views_;
};

}  // namespace fsdpd
