// Reconciler: which nodes are known is stored, so that the next life of the coordinator knows who is not
// there.
#include "coordinator/known_node.h"
#include "coordinator/reconciler.h"

namespace fsdpd {
namespace {

// When nodes come and go; and when none does, for the date at which they were last seen.
constexpr absl::Duration kAtMostEvery = absl::Seconds(1), kAtLeastEvery = absl::Minutes(10);

}  // namespace

void Reconciler::RememberNodes() {
  const absl::Duration since = lease_.now() - nodes_remembered_at_;
  if (since < kAtMostEvery) return;
  std::map<std::string, NodeMark> marks;
  for (const auto& [name, view] : views_) marks[name] = {view.epoch, view.connected, view.left};
  if (since < kAtLeastEvery && marks == nodes_remembered_) return;
  v1::ListNodesResponse nodes;
  for (const auto& [name, view] : views_) *nodes.add_nodes() = NodeOf(view, *parts_.clock);
  nodes_remembered_at_ = lease_.now();
  // What cannot be stored now is tried again: of what it is about nobody has to hear.
  if (parts_.store->SetNodes(nodes).ok()) nodes_remembered_ = std::move(marks);
}

}  // namespace fsdpd
