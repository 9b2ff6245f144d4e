// Which attempts of which jobs have been here, so that a launch that comes late or twice starts nothing. It
// keeps a bounded number of jobs: the oldest is forgotten first, but none that still runs.
//
// Thread safety: none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "agent/attempt.h"

namespace fsdpd {

class AttemptHistory {
 public:
  // `runs`: whether a job has a live attempt here. More jobs than `max_jobs` are kept only while they run.
  AttemptHistory(size_t max_jobs, std::function<bool(const std::string& job_id)> runs)
      : max_jobs_(max_jobs), runs_(std::move(runs)) {}

  // An attempt was launched, or is not to be any more.
  void Take(const AttemptId& id);
  // Of the job; empty when it is not known.
  std::optional<int> Newest(const std::string& job_id) const;
  // Likewise, of as many jobs at most: those that were taken last, newest first.
  std::vector<AttemptId> Last(size_t max_jobs) const;

 private:
  struct Entry {
    int attempt = 0;
    int64_t taken = 0;
  };

  const size_t max_jobs_;
  const std::function<bool(const std::string&)> runs_;
  std::map<std::string, Entry> jobs_;
  std::map<int64_t, std::string> by_age_;  // Key: Entry::taken.
  int64_t taken_ = 0;
};

}  // namespace fsdpd
