#include "coordinator/api/node_calls.h"

#include <absl/strings/str_cat.h>

#include <algorithm>
#include <array>
#include <map>

#include "base/api/call_limits.h"
#include "base/check.h"
#include "base/ids.h"
#include "coordinator/nodes/known_node.h"
#include "coordinator/request/errors.h"
#include "coordinator/request/list_order.h"

namespace fsdpd {
namespace {

// A cordoned node that has been unknown to the registry since its agent was forgotten.
v1::Node UnseenNode(const std::string& name) {
  v1::Node node;
  node.set_name(name);
  return node;
}

constexpr int64_t kDrainSeconds = 600;  // The same default as for a pause.

absl::Status CheckNode(const std::string& name) {
  if (name.empty()) return BadField("node", "is required; use a name from ListNodes");
  const absl::Status status = CheckNodeName(name);
  return status.ok() ? status : BadField("node", absl::StrCat("'", name, "' ", status.message()));
}

// Ties are broken by name.
absl::Status OrderNodes(const std::string& order_by, std::vector<v1::Node>* nodes) {
  FSDPD_ASSIGN_OR_RETURN(const ListOrder order,
                         ParseListOrder(order_by, {"name", "slots", "free_slots", "last_seen_time"}, {}));
  const auto value = [&](const v1::Node& node) {
    return std::array<int64_t, 4>{0, node.slots(), node.free_slots(),
                                  node.last_seen_unix_nanos()}[order.field];
  };
  std::sort(nodes->begin(), nodes->end(), [&](const v1::Node& a, const v1::Node& b) {
    const v1::Node& first = order.descending ? b : a;
    const v1::Node& second = order.descending ? a : b;
    if (order.field == 0) return first.name() < second.name();
    return value(first) != value(second) ? value(first) < value(second) : a.name() < b.name();
  });
  return absl::OkStatus();
}

}  // namespace

std::vector<v1::Node> NodeCalls::Nodes() const {
  std::map<std::string, v1::Node> nodes;
  for (const NodeView& view : nodes_->Snapshot()) nodes[view.info.node()] = NodeOf(view, *clock_);
  for (auto& [name, node] : nodes) reconciler_->preflights().MarkIn(&node);
  for (const auto& [name, cordon] : reconciler_->cordons().All()) {
    v1::Cordon* shown = nodes.try_emplace(name, UnseenNode(name)).first->second.mutable_cordon();
    *shown = cordon;
    shown->set_reason(ShownReason(cordon));
  }
  for (const auto& job : board_->Live()) {
    if (!HasAttempt(job->state())) continue;
    for (const v1::Job::Placement& placement : job->placements()) {
      const auto node = nodes.find(placement.node());
      if (node == nodes.end()) continue;
      if (job->stalled_since_unix_nanos() != 0) node->second.add_stalled_jobs(job->id());
      if (node->second.cordon().has_drain())
        node->second.mutable_cordon()->mutable_drain()->add_jobs(job->id());
    }
  }
  std::vector<v1::Node> by_name;
  for (auto& [name, node] : nodes) by_name.push_back(std::move(node));
  return by_name;
}

v1::Node NodeCalls::NodeNamed(const std::string& name) const {
  for (const v1::Node& node : Nodes()) {
    if (node.name() == name) return node;
  }
  return UnseenNode(name);  // It was forgotten in the meantime.
}

absl::Status NodeCalls::ListNodes(const ApiCall&, const v1::ListNodesRequest& request,
                                  v1::ListNodesResponse* response) {
  FSDPD_RETURN_IF_ERROR(RejectFilter(request.filter()));
  std::vector<v1::Node> nodes = Nodes();
  FSDPD_RETURN_IF_ERROR(OrderNodes(request.order_by(), &nodes));
  response->set_unix_nanos(absl::ToUnixNanos(clock_->Wall()));
  for (v1::Node& node : nodes) *response->add_nodes() = std::move(node);
  return absl::OkStatus();
}

absl::Status NodeCalls::CordonNode(const ApiCall&, const v1::CordonNodeRequest& request,
                                   v1::CordonNodeResponse* response) {
  FSDPD_RETURN_IF_ERROR(CheckNode(request.node()));
  if (request.reason().size() > kMaxReasonBytes)
    return BadField("reason", absl::StrCat("has more than ", kMaxReasonBytes, " characters"));
  FSDPD_RETURN_IF_ERROR(reconciler_->Cordon(request.node(), request.reason()));
  *response->mutable_node() = NodeNamed(request.node());
  return absl::OkStatus();
}

absl::Status NodeCalls::UncordonNode(const ApiCall&, const v1::UncordonNodeRequest& request,
                                     v1::UncordonNodeResponse* response) {
  FSDPD_RETURN_IF_ERROR(CheckNode(request.node()));
  FSDPD_RETURN_IF_ERROR(reconciler_->Uncordon(request.node()));
  *response->mutable_node() = NodeNamed(request.node());
  return absl::OkStatus();
}

absl::Status NodeCalls::DrainNode(const ApiCall&, const v1::DrainNodeRequest& request,
                                  v1::DrainNodeResponse* response) {
  FSDPD_RETURN_IF_ERROR(CheckNode(request.node()));
  if (request.reason().size() > kMaxReasonBytes)
    return BadField("reason", absl::StrCat("has more than ", kMaxReasonBytes, " characters"));
  const int64_t seconds = request.has_grace_seconds() ? request.grace_seconds() : kDrainSeconds;
  if (seconds < 1 || seconds > kMaxGraceSeconds)
    return BadField("grace_seconds", absl::StrCat("must be 1 to ", kMaxGraceSeconds, " (got ", seconds, ")"));
  FSDPD_RETURN_IF_ERROR(
      reconciler_->Drain(request.node(), request.reason(), 1000 * seconds, request.force()));
  *response->mutable_node() = NodeNamed(request.node());
  return absl::OkStatus();
}

absl::Status NodeCalls::DeleteNode(const ApiCall&, const v1::DeleteNodeRequest& request,
                                   v1::DeleteNodeResponse* response) {
  FSDPD_RETURN_IF_ERROR(CheckNode(request.node()));
  *response->mutable_node() = NodeNamed(request.node());
  return reconciler_->DeleteNode(request.node(), request.force());
}

absl::Status NodeCalls::PreflightNode(const ApiCall&, const v1::PreflightNodeRequest& request,
                                      v1::PreflightNodeResponse* response) {
  FSDPD_RETURN_IF_ERROR(CheckNode(request.node()));
  FSDPD_RETURN_IF_ERROR(reconciler_->Preflight(request.node()));
  *response->mutable_node() = NodeNamed(request.node());
  return absl::OkStatus();
}

}  // namespace fsdpd
