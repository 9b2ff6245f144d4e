// Index of live jobs by required action, updated when a job changes: a tick visits only the jobs that it has
// to act on, while thousands may be queued or paused.
//
// Not thread-safe: used only by the reconciler's thread.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "coordinator/schedule/quota.h"
#include "proto/fsdpd/v1/coordinator.pb.h"

namespace fsdpd {

class JobIndex {
 public:
  enum class View {
    kLaunched,   // They have an attempt.
    kPreflight,  // PREFLIGHT.
    kPausing,    // PAUSING.
    kResuming,   // PAUSED, and will be queued again without a request.
    kAwaiting,   // QUEUED or PAUSED until other jobs have succeeded.
  };

  void Set(const v1::Job&
               job);  // Call if the job is new, or its state, placements, pause or dependencies changed.
  void Erase(const std::string& id);

  // Ids in order. A copy, because the caller's actions may change the view.
  std::vector<std::string> In(View view) const;
  // Ranks that attempts and jobs in PREFLIGHT occupy, by project.
  const RanksByProject& held_ranks() const { return held_ranks_; }

  int64_t changes() const { return changes_; }  // Calls of Set() and Erase() so far.
  int64_t visited() const { return visited_; }  // Ids that In() has returned so far.

 private:
  struct Seen {
    std::set<View> views;
    std::string project;
    int64_t held_ranks = 0;
  };
  void Drop(const std::string& id);

  std::map<std::string, Seen> jobs_;
  std::map<View, std::set<std::string>> views_;
  RanksByProject held_ranks_;
  int64_t changes_ = 0;
  mutable int64_t visited_ = 0;
};

}  // namespace fsdpd
