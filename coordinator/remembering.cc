// Reconciler: which nodes are known is stored, so that the next life of the coordinator knows who is not
// there, and what they were measured to be.
#include "base/check.h"
#include "coordinator/known_node.h"
#include "coordinator/reconciler.h"

namespace fsdpd {
namespace {

// When nodes come and go; and when none does, for the date at which they were last seen.
constexpr absl::Duration kAtMostEvery = absl::Seconds(1), kAtLeastEvery = absl::Minutes(10);

}  // namespace

std::map<std::string, Reconciler::NodeMark> Reconciler::NodeMarks() const {
  std::map<std::string, NodeMark> marks;
  for (const auto& [name, view] : views_) {
    const v1::NodePreflight preflight = preflights_.Find(name).value_or(v1::NodePreflight());
    marks[name] = {view.epoch, view.connected, view.left, preflight.unix_nanos(), preflight.accepted()};
  }
  return marks;
}

void Reconciler::RememberNodes() {
  const absl::Duration since = lease_.now() - nodes_remembered_at_;
  if (since < kAtMostEvery) return;
  if (since < kAtLeastEvery && NodeMarks() == nodes_remembered_) return;
  // What cannot be stored now is tried again: of what it is about nobody has to hear.
  StoreNodes().IgnoreError();
}

absl::Status Reconciler::StoreNodes() {
  v1::ListNodesResponse nodes;
  for (const auto& [name, view] : views_) {
    v1::Node* const node = nodes.add_nodes();
    *node = NodeOf(view, *parts_.clock);
    preflights_.MarkIn(node);
  }
  nodes_remembered_at_ = lease_.now();
  FSDPD_RETURN_IF_ERROR(parts_.store->SetNodes(nodes));
  nodes_remembered_ = NodeMarks();
  return absl::OkStatus();
}

}  // namespace fsdpd
