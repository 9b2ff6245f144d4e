// Preflight: measures nodes before a job runs there (preflights.h). A job that is placed on nodes without a
// measurement of the last day holds its slots in PREFLIGHT while their agents measure all devices. It is
// launched once all nodes have passed. A node below a floor is cordoned with the measured number, also if a
// user requested the preflight, and however few nodes remain: nothing else ran there, so either the node or
// the floor is wrong. The job then returns to the queue and is placed elsewhere.
//
// A result, or an agent's report that it is still measuring, counts only if the coordinator ordered that
// preflight. Running preflights are stored with the nodes (Node.in_preflight), so that the next process of
// the coordinator accepts the result. It queues jobs that it finds in PREFLIGHT at its start again.
//
// Only idle nodes are measured: running jobs would be slowed down and would distort the measurement. A job
// that joins others on a node therefore uses it as they did. A job that is relaunched on the same nodes after
// a failed attempt does not wait for a new measurement, however old the last one is.
//
// Call order: Load(); then per tick events, Advance(), Begin(). Not thread-safe except results(): used only
// by the reconciler's thread. Ownership: borrows everything in Parts.
#pragma once

#include <absl/status/status.h>
#include <absl/time/time.h>

#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "coordinator/nodes/cordons.h"
#include "coordinator/nodes/preflight_floors.h"
#include "coordinator/nodes/preflights.h"
#include "coordinator/reconcile/attempt_book.h"
#include "coordinator/reconcile/job_table.h"
#include "coordinator/reconcile/node_presence.h"
#include "coordinator/schedule/placer.h"

namespace fsdpd {

// Which nodes are measured before a job runs there, and the limits they must meet.
struct PreflightPolicy {
  std::set<v1::Device> devices;  // Kinds of nodes to measure; empty: none.
  absl::Duration limit = absl::Minutes(2);
  std::vector<PreflightFloor> floors;  // In addition to the built-in floors.
};

class PreflightRunner {
 public:
  struct Parts {
    JobTable* jobs;
    const NodePresence* presence;
    AttemptBook* attempts;
    Cordons* cordons;
    NodeRegistry* nodes;
    const Clock* clock;
    Meters* meters;                 // Null without metrics.
    std::function<void()> ordered;  // A preflight was ordered, which must be stored in this tick.
  };

  PreflightRunner(PreflightPolicy policy, Parts parts)
      : policy_(std::move(policy)), parts_(std::move(parts)) {}

  void Load(const v1::ListNodesResponse& nodes);
  // The agent registered and is measuring (`still`) or not. Returns whether it measures as ordered.
  bool OnAttached(const std::string& node, bool still);
  void OnResult(const std::string& node, const v1::PreflightResult& result);
  void Delay(absl::Duration by);  // All time limits, after the coordinator was suspended.
  void Advance();

  // Launches the job, or measures its nodes first.
  absl::Status Begin(LiveJob* live, const PlaceDecision& decision, bool backfilled);
  void Measure(const std::string& node);  // No effect while it is being measured.
  void Forget(const std::string& node);   // A lost node was removed.
  void Delete(const std::string& node);   // A user deleted the node: also ends its measurement.

  bool IsMeasuring(const std::string& node) const { return measurements_.count(node) > 0; }
  std::set<std::string> Measuring() const;                   // Nodes.
  const Preflights& results() const { return preflights_; }  // Any thread.
  Preflights& results() { return preflights_; }

 private:
  struct Measurement {
    int64_t number = 0;  // 0: ordered by a previous process of the coordinator under an unknown number.
    absl::Time until;
    absl::Time lost_at = absl::InfiniteFuture();  // When its agent reconnected without it.
  };

  bool NeedsPreflight(const std::string& node, const v1::Job& job) const;
  int64_t NumberOf(const std::string& node) const;  // Number of the newest result; 0: none.
  void Refuse(const std::string& node, const v1::PreflightResult& result);
  void AdvanceMeasurements();
  void AdvanceJob(LiveJob* live);
  // Why the job's nodes became unusable, or "" if they passed or are still being measured.
  std::string UnplacedReason(LiveJob* live);

  const PreflightPolicy policy_;
  const Parts parts_;
  Preflights preflights_;
  std::map<std::string, Measurement> measurements_;  // By node, while they run.
  int64_t newest_ = 0;                               // Number of the newest measurement.
  std::set<std::string> unrequested_from_;           // Nodes whose refused results were logged.
};

}  // namespace fsdpd
