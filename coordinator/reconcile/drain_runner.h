// Drains of nodes: jobs on the node are paused and resume elsewhere, as for a preemption, until no process of
// any job is left. The stored cordon contains the drain, so a restart of the coordinator continues it.
//
// Call order: Start() for a user's request; then Advance() per tick. Not thread-safe: used only by the
// reconciler's thread. Ownership: borrows everything in Parts.
#pragma once

#include <absl/status/status.h>
#include <absl/time/time.h>

#include <map>
#include <string>
#include <vector>

#include "base/clock.h"
#include "coordinator/nodes/cordons.h"
#include "coordinator/reconcile/attempt_book.h"
#include "coordinator/reconcile/job_table.h"
#include "coordinator/reconcile/node_presence.h"
#include "coordinator/reconcile/slot_holders.h"

namespace fsdpd {

class DrainRunner {
 public:
  struct Parts {
    JobTable* jobs;
    const NodePresence* presence;
    AttemptBook* attempts;
    const SlotHolders* slots;
    Cordons* cordons;
    const Clock* clock;
  };

  explicit DrainRunner(Parts parts) : parts_(parts) {}

  // FAILED_PRECONDITION if a job there would lose all its progress, unless `force`. Otherwise errors of the
  // store, and nothing is changed.
  absl::Status Start(const std::string& node, const std::string& reason, int64_t grace_ms, bool force);
  void Advance();
  // The agent hosts ranks that were unknown when the node was reported empty, for example after a restore
  // from a backup. The report is withdrawn quietly, and becomes an event only if the ranks remain: after a
  // coordinator restart, agents also list ranks that have ended.
  void OnRanksFound(const std::string& node);
  void Forget(const std::string& node) { not_empty_since_.erase(node); }  // Uncordoned or deleted.

 private:
  std::vector<std::string> JobsLosingProgress(const std::string& node) const;
  void MoveJob(LiveJob* live, const std::string& node, const v1::Cordon::Drain& drain);
  bool IsEmpty(const std::string& node) const;
  void MarkEmpty(const std::string& node, v1::Cordon cordon);
  void MarkNotEmpty(const std::string& node, v1::Cordon cordon);

  const Parts parts_;
  // Drained nodes that are not empty, which is not stored yet.
  std::map<std::string, absl::Time> not_empty_since_;
};

}  // namespace fsdpd
