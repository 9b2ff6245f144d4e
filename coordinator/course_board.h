// How the newest step of each job went (StepCourse), as the agent of its rank 0 tells it at most once a
// second: for people who look. Nothing of it is stored; a coordinator that starts hears the next one.
//
// Taken of live jobs alone, from the node that has rank 0 of the attempt that runs. What was told of last
// stays when a job has ended, as it may be what somebody wants to see then; it is bounded by kMaxCoursesBytes
// over all jobs, of which the one that was told of longest ago goes first.
//
// Thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "base/mutex.h"
#include "coordinator/job_watch.h"
#include "proto/fsdpd/v1/agent.pb.h"
#include "proto/fsdpd/v1/course.pb.h"

namespace fsdpd {

// A thousand jobs of the largest kind: a rank tells of 4,096 runs and 1,024 samples at most, mostly 130 KB.
constexpr int64_t kMaxCoursesBytes = int64_t{128} << 20;
constexpr int64_t kMaxCourseBytes = 1 << 20;  // More than any rank of ours makes.

class CourseBoard {
 public:
  // `jobs` must outlive it.
  explicit CourseBoard(const JobBoard* jobs, int64_t max_bytes = kMaxCoursesBytes)
      : jobs_(jobs), max_bytes_(max_bytes) {}

  // From agents' streams: an update that has a course. REQUIRES: AttemptHosts (attempt_hosts.h) takes it.
  void Take(const v1::RankUpdate& update);
  // Empty: none was told of, or it had to go.
  std::optional<v1::GetStepCourseResponse> Find(const std::string& job_id) const;

 private:
  struct Kept {
    std::string bytes;  // Of a GetStepCourseResponse: a third of what it takes as one.
    int64_t turn = 0;   // When it was told of, among all.
  };
  void Drop(const std::string& job_id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const JobBoard* const jobs_;
  const int64_t max_bytes_;
  mutable Mutex mutex_;
  std::map<std::string, Kept> kept_ ABSL_GUARDED_BY(mutex_);      // By job.
  std::map<int64_t, std::string> turns_ ABSL_GUARDED_BY(mutex_);  // The jobs, by turn.
  int64_t last_turn_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace fsdpd
