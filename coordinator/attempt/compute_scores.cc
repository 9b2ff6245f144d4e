#include "coordinator/attempt/compute_scores.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

namespace fsdpd {
namespace {

constexpr double kRetained = 0.8;  // Weight of the earlier reports, per new report.

// The median of all elements except `own`. REQUIRES: sorted, at least two elements.
double MedianOfOthers(const std::vector<std::pair<double, int>>& sorted, size_t own) {
  const auto other = [&](size_t i) { return sorted[i + (i >= own ? 1 : 0)].first; };
  const size_t others = sorted.size() - 1;
  return (other((others - 1) / 2) + other(others / 2)) / 2;
}

}  // namespace

bool ComputeScores::Take(const v1::ComputeTimes::Rank& report, int world) {
  if (report.rank() < 0 || report.rank() >= world || report.steps() < 1) return false;
  if (!std::isfinite(report.seconds()) || report.seconds() < 0) return false;
  ranks_.resize(static_cast<size_t>(world));
  Sum& sum = ranks_[static_cast<size_t>(report.rank())];
  sum.steps = kRetained * sum.steps + static_cast<double>(report.steps());
  sum.seconds = kRetained * sum.seconds + report.seconds();
  changed_ = true;
  return true;
}

bool ComputeScores::TakeChanged() { return std::exchange(changed_, false); }

std::vector<v1::SlowRank> ComputeScores::Slowest(int64_t stages) const {
  std::map<int64_t, std::vector<std::pair<double, int>>> by_stage;  // Seconds of a step, rank.
  size_t known = 0;
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    const Sum& sum = ranks_[rank];
    if (sum.steps == 0) continue;
    ++known;
    const auto stage = static_cast<int64_t>(rank) * stages / static_cast<int64_t>(ranks_.size());
    by_stage[stage].emplace_back(sum.seconds / sum.steps, static_cast<int>(rank));
  }
  std::vector<v1::SlowRank> slowest;
  if (2 * known < ranks_.size()) return slowest;
  for (auto& [stage, ranks] : by_stage) {
    if (ranks.size() < 2) continue;
    std::sort(ranks.begin(), ranks.end());
    // Scores grow with the seconds: none below these is among the slowest.
    const size_t first = ranks.size() - std::min(ranks.size(), kMaxSlowRanks);
    for (size_t i = first; i < ranks.size(); ++i) {
      const double median = MedianOfOthers(ranks, i);
      if (!(median > 0) || ranks[i].first <= median) continue;
      v1::SlowRank& slow = slowest.emplace_back();
      slow.set_rank(ranks[i].second);
      slow.set_seconds(ranks[i].first);
      slow.set_score(ranks[i].first / median);
    }
  }
  std::sort(slowest.begin(), slowest.end(),
            [](const v1::SlowRank& a, const v1::SlowRank& b) { return a.score() > b.score(); });
  slowest.resize(std::min(slowest.size(), kMaxSlowRanks));
  return slowest;
}

}  // namespace fsdpd
