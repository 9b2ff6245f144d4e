// JobService: calls about nodes. The effect of a cordon on jobs is defined by the placer (placer.h).
#include <absl/strings/str_cat.h>

#include <map>

#include "base/api/call_limits.h"
#include "base/ids.h"
#include "coordinator/api/job_service.h"
#include "coordinator/nodes/known_node.h"
#include "coordinator/request/errors.h"
#include "coordinator/request/list_fields.h"

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

}  // namespace

std::vector<v1::Node> JobService::Nodes() const {
  std::map<std::string, v1::Node> nodes;
  for (const NodeView& view : parts_.nodes->Snapshot()) nodes[view.info.node()] = NodeOf(view, *parts_.clock);
  for (auto& [name, node] : nodes) parts_.reconciler->preflights().MarkIn(&node);
  for (const auto& [name, cordon] : parts_.reconciler->cordons().All()) {
    v1::Cordon* shown = nodes.try_emplace(name, UnseenNode(name)).first->second.mutable_cordon();
    *shown = cordon;
    shown->set_reason(ShownReason(cordon));
  }
  for (const auto& job : parts_.board->Live()) {
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

v1::Node JobService::NodeNamed(const std::string& name) const {
  for (const v1::Node& node : Nodes()) {
    if (node.name() == name) return node;
  }
  return UnseenNode(name);  // It was forgotten in the meantime.
}

grpc::Status JobService::ListNodes(grpc::ServerContext*, const v1::ListNodesRequest* request,
                                   v1::ListNodesResponse* response) {
  const absl::StatusOr<ListPredicate<v1::Node>> filter = NodeFilter(request->filter());
  if (!filter.ok()) return ToGrpc(BadField("filter", filter.status().message()));
  std::vector<v1::Node> nodes = Nodes();
  const absl::Status ordered = OrderNodes(request->order_by(), &nodes);
  if (!ordered.ok()) return ToGrpc(BadField("order_by", ordered.message()));
  response->set_unix_nanos(absl::ToUnixNanos(parts_.clock->Wall()));
  for (v1::Node& node : nodes) {
    if (*filter == nullptr || (*filter)(node)) *response->add_nodes() = std::move(node);
  }
  return grpc::Status::OK;
}

grpc::Status JobService::CordonNode(grpc::ServerContext*, const v1::CordonNodeRequest* request,
                                    v1::CordonNodeResponse* response) {
  if (const absl::Status name = CheckNode(request->node()); !name.ok()) return ToGrpc(name);
  if (request->reason().size() > kMaxReasonBytes)
    return ToGrpc(BadField("reason", absl::StrCat("has more than ", kMaxReasonBytes, " characters")));
  const absl::Status cordoned = parts_.reconciler->Cordon(request->node(), request->reason());
  if (!cordoned.ok()) return ToGrpc(cordoned);
  *response->mutable_node() = NodeNamed(request->node());
  return grpc::Status::OK;
}

grpc::Status JobService::UncordonNode(grpc::ServerContext*, const v1::UncordonNodeRequest* request,
                                      v1::UncordonNodeResponse* response) {
  if (const absl::Status name = CheckNode(request->node()); !name.ok()) return ToGrpc(name);
  const absl::Status lifted = parts_.reconciler->Uncordon(request->node());
  if (!lifted.ok()) return ToGrpc(lifted);
  *response->mutable_node() = NodeNamed(request->node());
  return grpc::Status::OK;
}

grpc::Status JobService::DrainNode(grpc::ServerContext*, const v1::DrainNodeRequest* request,
                                   v1::DrainNodeResponse* response) {
  if (const absl::Status name = CheckNode(request->node()); !name.ok()) return ToGrpc(name);
  if (request->reason().size() > kMaxReasonBytes)
    return ToGrpc(BadField("reason", absl::StrCat("has more than ", kMaxReasonBytes, " characters")));
  const int64_t seconds = request->has_grace_seconds() ? request->grace_seconds() : kDrainSeconds;
  if (seconds < 1 || seconds > kMaxGraceSeconds)
    return ToGrpc(
        BadField("grace_seconds", absl::StrCat("must be 1 to ", kMaxGraceSeconds, " (got ", seconds, ")")));
  const absl::Status drained =
      parts_.reconciler->Drain(request->node(), request->reason(), 1000 * seconds, request->force());
  if (!drained.ok()) return ToGrpc(drained);
  *response->mutable_node() = NodeNamed(request->node());
  return grpc::Status::OK;
}

grpc::Status JobService::DeleteNode(grpc::ServerContext*, const v1::DeleteNodeRequest* request,
                                    v1::DeleteNodeResponse* response) {
  if (const absl::Status name = CheckNode(request->node()); !name.ok()) return ToGrpc(name);
  *response->mutable_node() = NodeNamed(request->node());
  return ToGrpc(parts_.reconciler->DeleteNode(request->node(), request->force()));
}

grpc::Status JobService::PreflightNode(grpc::ServerContext*, const v1::PreflightNodeRequest* request,
                                       v1::PreflightNodeResponse* response) {
  if (const absl::Status name = CheckNode(request->node()); !name.ok()) return ToGrpc(name);
  const absl::Status begun = parts_.reconciler->Preflight(request->node());
  if (!begun.ok()) return ToGrpc(begun);
  *response->mutable_node() = NodeNamed(request->node());
  return grpc::Status::OK;
}

}  // namespace fsdpd
