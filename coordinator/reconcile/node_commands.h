// Commands of users for nodes: cordon, uncordon, drain, preflight and delete, each decided within a tick. A
// command is stored before it takes effect.
//
// Errors: NOT_FOUND for an unknown node; FAILED_PRECONDITION as in reconciler.h; those of the store. Not
// thread-safe: used only by the reconciler's thread. Ownership: borrows everything in Parts.
#pragma once

#include <absl/status/status.h>

#include <functional>
#include <string>
#include <utility>

#include "base/clock.h"
#include "coordinator/nodes/cordons.h"
#include "coordinator/nodes/node_registry.h"
#include "coordinator/reconcile/attempt_book.h"
#include "coordinator/reconcile/drain_runner.h"
#include "coordinator/reconcile/job_table.h"
#include "coordinator/reconcile/node_health.h"
#include "coordinator/reconcile/node_presence.h"
#include "coordinator/reconcile/node_records.h"
#include "coordinator/reconcile/preflight_runner.h"
#include "coordinator/reconcile/slot_holders.h"

namespace fsdpd {

class NodeCommands {
 public:
  struct Parts {
    const JobTable* jobs;
    NodePresence* presence;
    const AttemptBook* attempts;
    NodeHealth* health;
    PreflightRunner* preflights;
    const SlotHolders* slots;
    NodeRecords* records;
    DrainRunner* drains;
    Cordons* cordons;
    NodeRegistry* nodes;
    const Clock* clock;
    std::function<void(const std::string& node)> forget_node;  // Drops what is known about a removed node.
  };

  explicit NodeCommands(Parts parts) : parts_(std::move(parts)) {}

  absl::Status Cordon(const std::string& node, const std::string& reason);
  absl::Status Uncordon(const std::string& node);
  absl::Status Drain(const std::string& node, const std::string& reason, int64_t grace_ms, bool force);
  absl::Status Preflight(const std::string& node);
  absl::Status Delete(const std::string& node, bool force);

 private:
  bool IsKnown(const std::string& node) const;
  absl::Status AcceptMeasured(const std::string& node);
  absl::Status CheckDeletable(const std::string& node, bool force) const;

  const Parts parts_;
};

}  // namespace fsdpd
