// Plans of specs: PlanJob and SearchPlans. Both compute and have no side effects.
//
// One search runs at a time, and ends before its client's deadline: it takes a core for seconds, and jobs
// need the others. Thread-safe. Borrows its constructor arguments.
#pragma once

#include <atomic>

#include "base/clock.h"
#include "coordinator/admission/admission.h"
#include "coordinator/api/api_call.h"
#include "proto/fsdpd/v1/coordinator.pb.h"

namespace fsdpd {

class PlanCalls {
 public:
  PlanCalls(const Admission* admission, const Clock* clock) : admission_(admission), clock_(clock) {}

  absl::Status PlanJob(const ApiCall& call, const v1::PlanJobRequest& request, v1::PlanJobResponse* response);
  absl::Status SearchPlans(const ApiCall& call, const v1::SearchPlansRequest& request,
                           v1::SearchPlansResponse* response);

 private:
  absl::Status Search(const ApiCall& call, const v1::SearchPlansRequest& request, v1::PlanSearch* search);

  const Admission* const admission_;
  const Clock* const clock_;
  std::atomic<bool> searching_{false};
};

}  // namespace fsdpd
