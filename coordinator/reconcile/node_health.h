// Health of nodes: cordons a node after repeated failures of attempts on it (node_failures.h), and uncordons
// it when its agent was connected for kHealthyFor. Automatic cordons leave at least half of the nodes of a
// kind.
//
// Call order: Load() for each stored node; OnAttached() when an agent registers; OnAttemptOver() after each
// attempt; UncordonHealthy() per tick. Not thread-safe: used only by the reconciler's thread. Ownership:
// borrows everything in Parts.
#pragma once

#include <absl/time/time.h>

#include <map>
#include <string>
#include <utility>

#include "base/clock.h"
#include "coordinator/attempt/node_failures.h"
#include "coordinator/job/job_machine.h"
#include "coordinator/nodes/cordons.h"
#include "coordinator/reconcile/node_presence.h"

namespace fsdpd {

class NodeHealth {
 public:
  struct Parts {
    const NodePresence* presence;
    Cordons* cordons;
    const Clock* clock;
  };

  explicit NodeHealth(Parts parts) : parts_(parts) {}

  void Load(const v1::Node& node);
  void OnAttached(const std::string& node, const std::string& instance);
  // The job is after `event`, which may have ended its attempt: updates the failure counts of its nodes.
  void OnAttemptOver(const v1::Job& job, JobEvent event);
  void UncordonHealthy();

  void ClearFailures(const std::string& node) { node_failures_.ClearFailures(node); }
  void Forget(const std::string& node);  // A lost node was removed.
  void Delete(const std::string& node);  // A user deleted the node: also clears its failures.

  // Since when the cordoned node is healthy. InfinitePast() if it is not, or is not cordoned.
  absl::Time HealthySince(const std::string& node) const;
  int64_t FailureCountedAt(const std::string& node) const { return node_failures_.CountedAt(node); }
  void MarkIn(v1::Node* node) const;  // Sets `health`.

 private:
  bool MayBeCordoned(const std::string& node) const;
  bool OthersDisconnectedWith(const std::string& node) const;

  const Parts parts_;
  NodeFailures node_failures_;
  // Cordoned nodes that have been connected without interruption.
  std::map<std::string, absl::Time> healthy_since_;
  // As stored by the previous process, with the agent's instance: until that agent reconnects or its time is
  // over.
  std::map<std::string, std::pair<std::string, absl::Time>> healthy_before_;
  absl::Time next_opening_ = absl::InfinitePast();  // When UncordonHealthy() checks cordons again.
};

}  // namespace fsdpd
