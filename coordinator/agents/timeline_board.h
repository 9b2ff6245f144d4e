// Step timelines (StepTimeline): the timeline of the newest step of each job, from the agent of its rank 0,
// at most once per second. It is for users only and not stored; after a restart the next report fills it.
//
// Only accepted for live jobs, from the node of rank 0 of the running attempt; it remains after a job has
// ended. All jobs together are limited to kMaxTimelinesBytes: the least recently updated is dropped first.
//
// Thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "base/mutex.h"
#include "coordinator/job/job_watch.h"
#include "proto/fsdpd/v1/agent.pb.h"
#include "proto/fsdpd/v1/timeline.pb.h"

namespace fsdpd {

// A thousand jobs of the largest kind: a rank reports at most 4,096 runs and 1,024 samples, usually 130 KB.
constexpr int64_t kMaxTimelinesBytes = int64_t{128} << 20;
constexpr int64_t kMaxTimelineBytes = 1 << 20;  // More than any rank reports.

class TimelineBoard {
 public:
  // `jobs` must outlive it.
  explicit TimelineBoard(const JobBoard* jobs, int64_t max_bytes = kMaxTimelinesBytes)
      : jobs_(jobs), max_bytes_(max_bytes) {}

  // Stores the timeline of an agent's update. REQUIRES: accepted by AttemptHosts (attempt_hosts.h).
  void Take(const v1::RankUpdate& update);
  // Empty if none was reported, or it was dropped.
  std::optional<v1::GetStepTimelineResponse> Find(const std::string& job_id) const;

 private:
  struct Entry {
    std::string bytes;  // A serialized GetStepTimelineResponse: a third of the size of the message object.
    int64_t turn = 0;   // Position in the order of updates over all jobs.
  };
  void Drop(const std::string& job_id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const JobBoard* const jobs_;
  const int64_t max_bytes_;
  mutable Mutex mutex_;
  std::map<std::string, Entry> entries_ ABSL_GUARDED_BY(mutex_);  // By job id.
  std::map<int64_t, std::string> turns_ ABSL_GUARDED_BY(mutex_);  // Job ids by turn.
  int64_t last_turn_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace fsdpd
