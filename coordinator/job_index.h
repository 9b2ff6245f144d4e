// Views of the live jobs, kept where a job changes, so that a tick visits the jobs that it has to act on and
// not all of them: thousands may be queued or paused.
//
// Not thread-safe: the reconciler's thread only.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "coordinator/quota.h"
#include "proto/fsdpd/v1/coordinator.pb.h"

namespace fsdpd {

class JobIndex {
 public:
  enum class View {
    kLaunched,   // They have an attempt.
    kPreflight,  // PREFLIGHT.
    kPausing,    // PAUSING.
    kResuming,   // PAUSED, to be queued again without a request.
    kAwaiting,   // QUEUED or PAUSED until other jobs have succeeded.
  };

  void Set(const v1::Job& job);  // It is new, or its state, placements, pause, or jobs to wait for changed.
  void Erase(const std::string& id);

  // Their ids, in order. A copy: what the caller does with a job may change the view.
  std::vector<std::string> In(View view) const;
  // Ranks that attempts and jobs in PREFLIGHT hold, by project.
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
