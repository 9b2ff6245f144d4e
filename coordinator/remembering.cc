// Reconciler: which nodes are known is stored, so that the next life of the coordinator knows who is not
// there, and what they were measured to be.
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
  for (const auto& [name, view] : views_) {
    const v1::NodePreflight preflight = preflights_.Find(name).value_or(v1::NodePreflight());
    marks[name] = {view.epoch, view.connected, view.left, preflight.unix_nanos(), preflight.accepted()};
  }
  if (since < kAtLeastEvery && marks == nodes_remembered_) return;
  v1::ListNodesResponse nodes;
  for (const auto& [name, view] : views_) {
    v1::Node* const node = nodes.add_nodes();
    *node = NodeOf(view, *parts_.clock);
    preflights_.MarkIn(node);
  }
  nodes_remembered_at_ = lease_.now();
  // What cannot be stored now is tried again: of what it is about nobody has to hear.
  if (parts_.store->SetNodes(nodes).ok()) nodes_remembered_ = std::move(marks);
}

}  // namespace fsdpd
