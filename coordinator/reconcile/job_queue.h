// Queue of jobs that wait for slots: selects which are launched, on which nodes and with which world size,
// and tells readers why the others wait. A job behind one that waits for the same slots gets only slots that
// the job ahead cannot use, or is backfilled on them until it can. A waiting job may preempt jobs of lower
// priority (preemption.h): they are paused like by a user and resume by themselves when slots are free. A
// preempted job in PREFLIGHT is queued again immediately.
//
// Call order: PlaceJobs() per tick, after everything that frees slots. Not thread-safe: used only by the
// reconciler's thread. Ownership: borrows everything in Parts.
#pragma once

#include <absl/status/status.h>
#include <absl/time/time.h>

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "coordinator/job/job_watch.h"
#include "coordinator/reconcile/attempt_book.h"
#include "coordinator/reconcile/job_dependencies.h"
#include "coordinator/reconcile/job_table.h"
#include "coordinator/reconcile/node_presence.h"
#include "coordinator/reconcile/preflight_runner.h"
#include "coordinator/reconcile/slot_holders.h"
#include "coordinator/reconcile/world_chooser.h"
#include "coordinator/schedule/quota.h"
#include "coordinator/schedule/reservations.h"

namespace fsdpd {

class JobQueue {
 public:
  struct Parts {
    JobTable* jobs;
    const NodePresence* presence;
    AttemptBook* attempts;
    PreflightRunner* preflights;
    const SlotHolders* slots;
    WorldChooser* worlds;
    JobDependencies* dependencies;
    JobBoard* board;
    const Clock* clock;
    std::function<RanksByProject()> quotas;  // Null without quotas.
  };

  explicit JobQueue(Parts parts) : parts_(std::move(parts)) {}

  void PlaceJobs();
  int64_t visited() const { return visited_; }  // Jobs, in all calls so far.

 private:
  // State of a node: name, stream, disconnected, being measured, free devices, reason of the cordon.
  using NodeSnapshot =
      std::tuple<std::string, int64_t, bool, bool, std::vector<int>, std::optional<std::string>>;
  // Inputs of a pass over the whole queue.
  struct Snapshot {
    std::vector<NodeSnapshot> nodes;
    RanksByProject quotas;
    int64_t changes = 0;  // Changes of the table's index.
    bool settled = false;
    absl::Time time = absl::InfinitePast();
    bool undone = false;                       // A plan or a reason was left for the next tick.
    absl::Time wake = absl::InfiniteFuture();  // End of the first delay between two attempts.
  };
  struct Preempted {
    bool suffices = false;  // As Victims::suffices (preemption.h).
    std::string note;       // Which jobs leave for it; appended to the reason why it waits.
  };
  struct Placing;

  Snapshot SnapshotNow(const std::vector<NodeSlots>& slots) const;
  bool IsAsBefore(const Snapshot& now) const;
  std::string PlaceNext(LiveJob* live, Placing* placing);
  std::string PlaceFirst(LiveJob* live, const PlaceRequest& request, Placing* placing);
  std::string PlaceBehind(LiveJob* live, const PlaceRequest& request, const std::string& ahead,
                          Placing* placing);
  static std::string SkipImpossible(const LiveJob& live, const PlaceDecision& decision, Placing* placing);
  std::string LaunchFrom(LiveJob* live, const PlaceDecision& decision, bool backfilled, Placing* placing);
  std::string HeldReason(LiveJob* live, const PlaceRequest& request, RemainingQuotas* quotas,
                         v1::Job::Waiting* waiting);
  void ShowWaiting(std::map<std::string, v1::Job::Waiting> waiting);
  Preempted PreemptFor(const v1::Job& head, const PlaceRequest& request, const Reservations& ahead);
  absl::Status Preempt(LiveJob* live, const v1::Job& head);

  const Parts parts_;
  Snapshot last_;  // Of the last pass.
  int64_t visited_ = 0;
};

}  // namespace fsdpd
