// Ended jobs: deletes old ones from the store, and orders agents to delete the files of deleted jobs.
//
// Call order: ForgetOld() per tick, if all jobs that waited for an ended job have recorded its success
// (job_dependencies.h); then SendForgets(). Not thread-safe: used only by the reconciler's thread. Ownership:
// borrows everything in Parts.
#pragma once

#include <absl/time/time.h>

#include <deque>
#include <string>

#include "base/clock.h"
#include "coordinator/nodes/node_registry.h"
#include "coordinator/reconcile/job_table.h"
#include "coordinator/reconcile/node_presence.h"
#include "coordinator/store/state_store.h"

namespace fsdpd {

class EndedJobs {
 public:
  struct Parts {
    JobTable* jobs;
    const NodePresence* presence;
    NodeRegistry* nodes;
    StateStore* store;
    const Clock* clock;
  };

  // The first old jobs are deleted some seconds later: agents that should delete their files must reconnect
  // first.
  EndedJobs(const Retention& retention, Parts parts)
      : retention_(retention), parts_(parts), forgotten_at_(parts_.presence->now()) {}

  void Forget(const std::string& job) { to_forget_.push_back(job); }  // It was deleted from the store.
  void ForgetOld();
  void SendForgets();

 private:
  const Retention retention_;
  const Parts parts_;
  absl::Time forgotten_at_;  // When ForgetOld() last deleted jobs.
  std::deque<std::string> to_forget_;
};

}  // namespace fsdpd
