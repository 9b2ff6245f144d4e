// Reconciler: which nodes are known is stored, so that the next life of the coordinator knows who is not
// there, and what they were measured to be.
#include <absl/strings/str_join.h>

#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "coordinator/known_node.h"
#include "coordinator/reconciler.h"

namespace fsdpd {
namespace {

// When nodes come and go; and when none does, for the date at which they were last seen.
constexpr absl::Duration kAtMostEvery = absl::Seconds(1), kAtLeastEvery = absl::Minutes(10);
constexpr size_t kMeasuredAt = 3;  // Of a NodeMark.

v1::Event Measured(const std::string& node, const v1::NodePreflight& preflight) {
  const bool passed = preflight.faults().empty();
  v1::Event event;
  event.set_unix_nanos(preflight.unix_nanos());
  event.set_kind(passed ? v1::EVENT_KIND_PREFLIGHT_PASSED : v1::EVENT_KIND_PREFLIGHT_MISSED);
  event.set_node(node);
  event.set_message(passed ? "it is fast enough" : absl::StrJoin(preflight.faults(), "; "));
  return event;
}

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
  if (lease_.now() - nodes_remembered_at_ < kAtMostEvery) return;
  const bool all = lease_.now() - nodes_dated_at_ >= kAtLeastEvery;
  if (all) nodes_dated_at_ = lease_.now();
  const absl::Status stored = StoreNodes(all);
  // What cannot be stored now is tried again.
  if (std::exchange(nodes_stored_, stored.ok()) && !stored.ok())
    LogWarning("what nodes are known to be is not stored: %s", stored.message());
}

// Those that have changed alone: thousands of them have some megabytes.
absl::Status Reconciler::StoreNodes(bool all) {
  std::map<std::string, NodeMark> marks = NodeMarks();
  v1::ListNodesResponse changed;
  Events news;
  for (const auto& [name, mark] : marks) {
    const auto it = nodes_remembered_.find(name);
    if (!all && it != nodes_remembered_.end() && it->second == mark) continue;
    v1::Node* const node = changed.add_nodes();
    *node = NodeOf(views_.at(name), *parts_.clock);
    preflights_.MarkIn(node);
    const int64_t measured = std::get<kMeasuredAt>(mark);
    const int64_t before = it == nodes_remembered_.end() ? 0 : std::get<kMeasuredAt>(it->second);
    if (measured != 0 && measured != before) news.push_back(Measured(name, node->preflight()));
  }
  std::vector<std::string> gone;
  for (const auto& [name, mark] : nodes_remembered_) {
    if (marks.count(name) == 0) gone.push_back(name);
  }
  if (changed.nodes().empty() && gone.empty()) return absl::OkStatus();
  nodes_remembered_at_ = lease_.now();
  FSDPD_RETURN_IF_ERROR(parts_.store->UpdateNodes(changed, gone, news));
  nodes_remembered_ = std::move(marks);
  return absl::OkStatus();
}

}  // namespace fsdpd
