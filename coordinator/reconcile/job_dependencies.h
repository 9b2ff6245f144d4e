// Dependencies between jobs (job_after.h): jobs that wait until other jobs have succeeded. A waiting job
// records each success, because the record of an ended job may be deleted.
//
// Not thread-safe: used only by the reconciler's thread. Ownership: borrows the table and the store.
#pragma once

#include <absl/status/status.h>

#include "coordinator/job/job_after.h"
#include "coordinator/reconcile/job_table.h"
#include "coordinator/store/state_store.h"

namespace fsdpd {

class JobDependencies {
 public:
  JobDependencies(JobTable* jobs, StateStore* store) : jobs_(jobs), store_(store) {}

  // The states of the jobs that `live` waits for; `live` must outlive the result.
  StateOfJob StatesFor(LiveJob* live);
  // Per tick. Returns whether all succeeded dependencies are recorded in the waiting jobs: until then no
  // ended job may be deleted.
  bool Advance();
  // Before `deleted` is deleted: jobs that wait for it record its success, or prevent the deletion.
  absl::Status Release(const v1::Job& deleted);

 private:
  absl::Status Record(LiveJob* live, const DependencyChanges& changes);

  JobTable* const jobs_;
  StateStore* const store_;
};

}  // namespace fsdpd
