#include "coordinator/job/elastic.h"

#include <absl/strings/str_cat.h>

#include "coordinator/job/job_plan.h"
#include "fsdp/plan/spec/defaults.h"

namespace fsdpd {
namespace {

int64_t RanksOf(const v1::Resources& resources) { return resources.nodes() * resources.ranks_per_node(); }

}  // namespace

bool MayShrink(const v1::Job& job) {
  if (!job.spec().restart().has_elastic() || job.attempt() == 0 || IsPlanOpen(job)) return false;
  return job.has_shrunk() || (job.has_failure() && job.failure().attempt() == job.attempt());
}

absl::Duration ShrinkWait(const v1::Job& job) {
  if (job.has_shrunk()) return absl::ZeroDuration();
  return absl::Seconds(WithDefaults(job.spec(), nullptr).restart().elastic().wait_seconds());
}

v1::Job WithAllRanks(v1::Job job) {
  if (!job.has_shrunk()) return job;
  *job.mutable_resolved() = job.shrunk().resolved();
  *job.mutable_memory_plan() = job.shrunk().memory_plan();
  job.set_node_host_bytes(job.shrunk().node_host_bytes());
  job.set_memory_margin(job.shrunk().memory_margin());
  job.clear_shrunk();
  return job;
}

int64_t RanksOf(const v1::Job& job) { return RanksOf(FilledSpec(job).resources()); }

int64_t AllRanksOf(const v1::Job& job) { return RanksOf(WithDefaults(job.spec(), nullptr).resources()); }

bool IsIn(const World& world, const v1::Job& job) {
  const v1::Resources& resources = job.resolved().resources();
  return resources.nodes() == world.nodes && resources.ranks_per_node() == world.ranks_per_node;
}

void KeepShrunk(const Plan& plan, const std::string& why, v1::Job* job) {
  v1::Job::Shrunk* shrunk = job->mutable_shrunk();
  // Only the first shrink saves the plan of all ranks: a later one would overwrite it with a smaller plan.
  if (!shrunk->has_resolved()) {
    *shrunk->mutable_resolved() = job->resolved();
    *shrunk->mutable_memory_plan() = job->memory_plan();
    shrunk->set_node_host_bytes(job->node_host_bytes());
    shrunk->set_memory_margin(job->memory_margin());
  }
  shrunk->set_reason(why);
  KeepPlan(plan, /*open=*/false, job);
}

std::string ShrunkReason(const v1::Job& job, const PlaceDecision& decision) {
  std::string nodes;
  for (const v1::Job::Placement& placement : decision.placements) {
    absl::StrAppend(&nodes, nodes.empty() ? "" : ", ", placement.node());
    if (nodes.size() > 100) {
      nodes += ", ...";
      break;
    }
  }
  return absl::StrCat("launching ", RanksOf(job), " of ", AllRanksOf(job), " ranks on ", nodes,
                      ", because not all are available: ", job.shrunk().reason());
}

}  // namespace fsdpd
