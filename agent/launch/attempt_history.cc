#include "agent/launch/attempt_history.h"

#include <algorithm>

namespace fsdpd {

void AttemptHistory::Take(const AttemptId& id) {
  const auto [it, is_new] = jobs_.emplace(id.job_id, Entry{id.attempt, 0});
  Entry& entry = it->second;
  if (!is_new) by_age_.erase(entry.taken);
  entry.attempt = std::max(entry.attempt, id.attempt);
  entry.taken = ++taken_;
  by_age_[entry.taken] = id.job_id;
  for (auto oldest = by_age_.begin(); jobs_.size() > max_jobs_ && oldest != by_age_.end();) {
    if (oldest->second == id.job_id || runs_(oldest->second)) {
      ++oldest;
      continue;
    }
    jobs_.erase(oldest->second);
    oldest = by_age_.erase(oldest);
  }
}

std::optional<int> AttemptHistory::Newest(const std::string& job_id) const {
  const auto it = jobs_.find(job_id);
  if (it == jobs_.end()) return std::nullopt;
  return it->second.attempt;
}

std::vector<AttemptId> AttemptHistory::Last(size_t max_jobs) const {
  std::vector<AttemptId> last;
  for (auto it = by_age_.rbegin(); it != by_age_.rend() && last.size() < max_jobs; ++it)
    last.push_back({it->second, jobs_.at(it->second).attempt});
  return last;
}

}  // namespace fsdpd
