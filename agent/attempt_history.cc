#include "agent/attempt_history.h"

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

}  // namespace fsdpd
