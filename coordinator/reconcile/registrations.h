// Registrations of agents: compares the attempts that an agent hosts with those that are placed on its node.
// What the agent lacks is sent again, and what is not placed there is stopped. Such an attempt ended while
// the node was away, is newer than a state that was restored from a backup, or belongs to another cluster. It
// affects its job only if the job was placed on this node (attempt_hosts.h).
//
// Not thread-safe: used only by the reconciler's thread. Ownership: borrows everything in Parts.
#pragma once

#include <absl/time/time.h>

#include <string>

#include "coordinator/reconcile/attempt_book.h"
#include "coordinator/reconcile/drain_runner.h"
#include "coordinator/reconcile/job_table.h"
#include "coordinator/reconcile/node_health.h"
#include "coordinator/reconcile/node_presence.h"
#include "coordinator/reconcile/node_records.h"
#include "coordinator/reconcile/preflight_runner.h"
#include "coordinator/store/state_store.h"

namespace fsdpd {

class Registrations {
 public:
  struct Parts {
    JobTable* jobs;
    NodePresence* presence;
    AttemptBook* attempts;
    NodeHealth* health;
    PreflightRunner* preflights;
    NodeRecords* records;
    DrainRunner* drains;
    StateStore* store;
    Meters* meters;  // Null without metrics.
  };

  explicit Registrations(Parts parts) : parts_(parts) {}

  void OnAttached(const v1::Register& info, int64_t stream_generation);

 private:
  // Returns false if rejected. `leftovers`: attempts that the node has reported before, of this registration
  // or retained.
  bool StopUnplaced(const v1::Register& info, const AttemptRef& ref, int leftovers);
  void OnNewerAttempt(const std::string& node, int attempt, LiveJob* live);
  absl::Time WaitForLeftovers(const std::string& node, LiveJob* live);
  StopOrder OrderForUnknown(const std::string& job) const;

  const Parts parts_;
};

}  // namespace fsdpd
