// Choice of a queued job's plan, world size and nodes: makes a plan that was left open (job_plan.h), and
// decides whether the job is launched with all its ranks or with fewer (elastic.h). A plan is stored with the
// launch at the latest.
//
// Not thread-safe: used only by the reconciler's thread. Ownership: borrows the table and the presence.
#pragma once

#include <absl/status/status.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/reconcile/job_table.h"
#include "coordinator/reconcile/node_presence.h"
#include "coordinator/schedule/placer.h"
#include "coordinator/schedule/quota.h"
#include "fsdp/plan/plan.h"

namespace fsdpd {

// The job's requirements and the preferences that follow from its last attempt.
PlaceRequest RequestAgain(const v1::Job& job);

class WorldChooser {
 public:
  // MakePlan() of plan.h, for jobs that were admitted before enough nodes were known.
  using Planner = std::function<Plan(const v1::JobSpec& spec, int64_t budget_bytes_per_rank)>;

  WorldChooser(JobTable* jobs, const NodePresence* presence, Planner plan)
      : jobs_(jobs), presence_(presence), plan_(std::move(plan)) {}

  // Returns the job's placement, or why it waits; the reason is empty if its plan must wait for the next
  // tick. The job is not QUEUED afterwards if its plan was rejected. `quotas`: the ranks of its current plan
  // are within them. `plans`: number of plans made in this tick.
  PlaceDecision Choose(LiveJob* live, const std::vector<NodeSlots>& nodes, const RemainingQuotas& quotas,
                       int* plans);
  // Ends a job that can never be launched.
  absl::Status GiveUp(LiveJob* live, const std::string& why);

 private:
  PlaceDecision Decide(LiveJob* live, const std::vector<NodeSlots>& nodes, int* plans);
  PlaceDecision Shrink(LiveJob* live, const std::vector<NodeSlots>& nodes, const std::string& why,
                       int* plans);
  absl::Status ClosePlan(LiveJob* live, int64_t offer_bytes);

  JobTable* const jobs_;
  const NodePresence* const presence_;
  const Planner plan_;
};

}  // namespace fsdpd
