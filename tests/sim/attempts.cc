#include "tests/sim/attempts.h"

#include <absl/strings/str_cat.h>

#include <algorithm>

namespace fsdpd::sim {

void Attempts::Launched(const v1::Job& job, bool again) {
  if (!again) CheckBefore(job);
  const AttemptId id = {job.id(), job.attempt()};
  Attempt& attempt = attempts_[id];
  attempt.since = world_->now();
  const std::vector<std::shared_ptr<RankLife>> left = ranks_->Left();
  for (const v1::Job::Placement& placement : job.placements()) {
    attempt.nodes.push_back(placement.node());
    for (const int device : placement.devices()) {
      const auto other = std::find_if(left.begin(), left.end(), [&](const auto& rank) {
        return rank->node() == placement.node() && rank->device() == device;
      });
      if (other != left.end())
        world_->ReportViolation(absl::StrCat("job ", job.id(), ": was assigned device ", device, " of ",
                                             placement.node(), ", which still has processes of ",
                                             ToString((*other)->id())));
    }
  }
}

// After a verdict of a hang, ranks may still have finished.
void Attempts::CheckBefore(const v1::Job& job) {
  const AttemptId id = {job.id(), job.attempt() - 1};
  const auto before = attempts_.find(id);
  if (before == attempts_.end() || ranks_->Finished(id) < before->second.world) return;
  const bool hung = job.failure().has_hang() && job.failure().attempt() == id.attempt;
  if (!hung && !MayBeUnreported(before->second))
    world_->ReportViolation(absl::StrCat("job ", job.id(),
                                         ": another attempt was launched after all ranks of attempt ",
                                         id.attempt, " finished"));
}

// The agents' knowledge of the attempt may have been lost, or was reported too late.
bool Attempts::MayBeUnreported(const Attempt& attempt) const {
  return std::any_of(attempt.nodes.begin(), attempt.nodes.end(), [&](const std::string& node) {
    const auto silent = silent_.find(node);
    return ranks_->AgentEnded(node) >= attempt.since ||
           (silent != silent_.end() && silent->second >= attempt.since);
  });
}

void Attempts::Stored(const v1::Job& job) {
  // A launch that was not stored may be repeated with fewer ranks.
  if (job.state() == v1::JOB_STATE_STARTING) {
    int& world = attempts_[{job.id(), job.attempt()}].world = 0;
    for (const v1::Job::Placement& placement : job.placements()) world += placement.ranks();
  }
  int not_begun = 0;
  for (int number = 1; number <= job.attempt(); ++number) {
    const auto it = attempts_.find({job.id(), number});
    if (it == attempts_.end() || it->second.begun < it->second.world) ++not_begun;
  }
  if (job.refused_launches() > not_begun)
    world_->ReportViolation(absl::StrCat("job ", job.id(), ": refused_launches is ", job.refused_launches(),
                                         ", but only ", not_begun, " launches did not reach all ranks"));
}

}  // namespace fsdpd::sim
