#include "agent/metrics/compute_times.h"

namespace fsdpd {

std::optional<v1::ComputeTimes> ComputeTimes::Take(const RankId& id, const v1::StepReport& report,
                                                   absl::Time now) {
  Unsent& unsent = attempts_.try_emplace(id.of, Unsent{now, {}}).first->second;
  v1::ComputeTimes::Rank& rank = unsent.ranks[id.rank];
  rank.set_rank(id.rank);
  rank.set_steps(rank.steps() + 1);
  rank.set_seconds(rank.seconds() + report.compute_seconds());
  if (now - unsent.sent < kComputeTimesEvery) return std::nullopt;
  v1::ComputeTimes times;
  times.set_job_id(id.of.job_id);
  times.set_attempt(id.of.attempt);
  for (const auto& [number, sum] : unsent.ranks) *times.add_ranks() = sum;
  unsent.ranks.clear();
  unsent.sent = now;
  return times;
}

void ComputeTimes::Forget(const AttemptId& attempt) { attempts_.erase(attempt); }

}  // namespace fsdpd
