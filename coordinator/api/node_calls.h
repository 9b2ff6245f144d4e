// Calls about nodes: ListNodes, cordons, drains, preflights and deletions. The effect of a cordon on jobs is
// defined by the placer (placer.h).
//
// Thread-safe. Borrows its constructor arguments.
#pragma once

#include <string>
#include <vector>

#include "base/clock.h"
#include "coordinator/api/api_call.h"
#include "coordinator/job/job_watch.h"
#include "coordinator/nodes/node_registry.h"
#include "coordinator/reconcile/reconciler.h"

namespace fsdpd {

class NodeCalls {
 public:
  NodeCalls(const NodeRegistry* nodes, Reconciler* reconciler, const JobBoard* board, const Clock* clock)
      : nodes_(nodes), reconciler_(reconciler), board_(board), clock_(clock) {}

  absl::Status ListNodes(const ApiCall& call, const v1::ListNodesRequest& request,
                         v1::ListNodesResponse* response);
  absl::Status CordonNode(const ApiCall& call, const v1::CordonNodeRequest& request,
                          v1::CordonNodeResponse* response);
  absl::Status UncordonNode(const ApiCall& call, const v1::UncordonNodeRequest& request,
                            v1::UncordonNodeResponse* response);
  absl::Status DrainNode(const ApiCall& call, const v1::DrainNodeRequest& request,
                         v1::DrainNodeResponse* response);
  absl::Status DeleteNode(const ApiCall& call, const v1::DeleteNodeRequest& request,
                          v1::DeleteNodeResponse* response);
  absl::Status PreflightNode(const ApiCall& call, const v1::PreflightNodeRequest& request,
                             v1::PreflightNodeResponse* response);

 private:
  std::vector<v1::Node> Nodes() const;  // By name.
  v1::Node NodeNamed(const std::string& name) const;

  const NodeRegistry* const nodes_;
  Reconciler* const reconciler_;
  const JobBoard* const board_;
  const Clock* const clock_;
};

}  // namespace fsdpd
