#include "coordinator/job/job_plan.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include <algorithm>
#include <string>
#include <vector>

#include "fsdp/plan/budget.h"
#include "fsdp/plan/resolve.h"
#include "fsdp/plan/spec/defaults.h"
#include "fsdp/plan/spec/steps_limit.h"

namespace fsdpd {
bool IsPlanOpen(const v1::Job& job) { return !job.has_resolved() || job.plan_provisional(); }

bool LeavesPlanOpen(const v1::JobSpec& spec, const MemoryOffer& offer) {
  return !offer.firm && !spec.resources().has_memory_budget_bytes();
}

v1::JobSpec FilledSpec(const v1::Job& job) {
  return job.has_resolved() ? job.resolved() : WithDefaults(job.spec(), nullptr);
}

PlaceRequest RequestOf(const v1::Job& job) {
  if (!job.has_resolved()) return RequestOf(WithDefaults(job.spec(), nullptr));
  PlaceRequest request = RequestOf(job.resolved());
  if (job.plan_provisional()) return request;
  request.bytes_per_rank = OfferNeeded(job.resolved(), job.memory_plan().peak_bytes(), job.memory_margin());
  request.host_bytes = job.node_host_bytes();
  return request;
}

void KeepPlan(const Plan& plan, bool open, v1::Job* job) {
  const int64_t known_steps = job->resolved().train().steps();
  *job->mutable_resolved() = plan.resolved;
  KeepSteps(known_steps, job);
  *job->mutable_memory_plan() = ToProto(plan.memory);
  job->set_node_host_bytes(HostBytesOfNode(plan));
  job->set_memory_margin(true);
  job->set_plan_provisional(open);
}

void KeepSteps(int64_t steps, v1::Job* job) {
  if (steps < 1 || steps > kMaxSteps || !job->has_resolved()) return;
  const auto keep = [steps](v1::Train* train) {
    if (!train->has_epochs()) return;  // Known: the steps of a job never change.
    train->clear_epochs();
    train->set_steps(steps);
  };
  keep(job->mutable_resolved()->mutable_train());
  if (job->has_shrunk()) keep(job->mutable_shrunk()->mutable_resolved()->mutable_train());
}

bool IsOnlyTooLarge(const Plan& refused) {
  return std::all_of(refused.violations.begin(), refused.violations.end(), [](const Violation& violation) {
    return violation.level != ViolationLevel::kError || violation.rule == kMemoryOverBudget;
  });
}

std::string WhyRefused(const Plan& refused) {
  std::vector<std::string> violations;
  for (const Violation& violation : refused.violations) {
    if (violation.level == ViolationLevel::kError)
      violations.push_back(absl::StrCat(violation.field, ": ", violation.reason));
  }
  if (violations.size() == 1) return violations.front();
  return absl::StrCat(violations.size(), " errors:\n  ", absl::StrJoin(violations, "\n  "));
}

}  // namespace fsdpd
