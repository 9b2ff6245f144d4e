#include "coordinator/job/job_index.h"

#include <utility>

#include "coordinator/job/job_after.h"
#include "coordinator/job/job_machine.h"

namespace fsdpd {

void JobIndex::Set(const v1::Job& job) {
  // Removes the old entry first: a change may move the job between views, and held ranks are sums.
  Drop(job.id());
  ++changes_;
  const v1::JobState state = job.state();
  const bool paused = state == v1::JOB_STATE_PAUSED;
  Seen seen;
  if (HasAttempt(state)) seen.views.insert(View::kLaunched);
  if (state == v1::JOB_STATE_PREFLIGHT) seen.views.insert(View::kPreflight);
  if (state == v1::JOB_STATE_PAUSING) seen.views.insert(View::kPausing);
  if (paused && job.pause().resumes_automatically()) seen.views.insert(View::kResuming);
  if ((paused || state == v1::JOB_STATE_QUEUED) && WaitsForJobs(job)) seen.views.insert(View::kAwaiting);
  for (const v1::Job::Placement& held : job.reserved_nodes()) seen.held_ranks += held.ranks();
  if (HasAttempt(state)) {
    for (const v1::Job::Placement& placement : job.placements()) seen.held_ranks += placement.ranks();
  }
  if (seen.held_ranks > 0) held_ranks_[seen.project = job.project()] += seen.held_ranks;
  for (const View view : seen.views) views_[view].insert(job.id());
  if (!seen.views.empty() || seen.held_ranks > 0) jobs_[job.id()] = std::move(seen);
}

void JobIndex::Erase(const std::string& id) {
  Drop(id);
  ++changes_;
}

void JobIndex::Drop(const std::string& id) {
  const auto it = jobs_.find(id);
  if (it == jobs_.end()) return;
  for (const View view : it->second.views) views_[view].erase(id);
  if (it->second.held_ranks > 0) {
    const auto held = held_ranks_.find(it->second.project);
    held->second -= it->second.held_ranks;
    if (held->second == 0) held_ranks_.erase(held);
  }
  jobs_.erase(it);
}

std::vector<std::string> JobIndex::In(View view) const {
  const auto it = views_.find(view);
  if (it == views_.end()) return {};
  visited_ += static_cast<int64_t>(it->second.size());
  return {it->second.begin(), it->second.end()};
}

}  // namespace fsdpd
