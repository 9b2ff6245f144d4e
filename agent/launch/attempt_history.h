// Newest attempt of each job that was launched on this node, so that a late or repeated launch starts
// nothing. The number of jobs is bounded: the oldest entries are dropped first, except for jobs that are
// running.
//
// Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "agent/launch/attempt.h"

namespace fsdpd {

class AttemptHistory {
 public:
  // `runs`: returns whether the job has a live attempt here. Entries beyond `max_jobs` remain only while
  // their jobs run.
  AttemptHistory(size_t max_jobs, std::function<bool(const std::string& job_id)> runs)
      : max_jobs_(max_jobs), runs_(std::move(runs)) {}

  // Records that the attempt was launched, or that it must not be launched any more.
  void Take(const AttemptId& id);
  // Newest attempt of the job; empty if the job is unknown.
  std::optional<int> Newest(const std::string& job_id) const;
  // The same for up to `max_jobs` jobs, most recently recorded first.
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
