// Commands of users for jobs: cancel, pause, resume, retry and delete, each decided within a tick. Each
// returns the job after the command, as shown to readers; Delete() returns the job before it. A command is
// stored before it acts. If that fails, it is refused and the job is unchanged, except that the cancel of a
// job with ranks takes effect.
//
// Errors: NOT_FOUND; FAILED_PRECONDITION if the job's state does not allow the command; the error of the
// store. Not thread-safe: used only by the reconciler's thread. Ownership: borrows everything in Parts.
#pragma once

#include <absl/status/statusor.h>

#include <string>
#include <vector>

#include "base/clock.h"
#include "coordinator/reconcile/attempt_book.h"
#include "coordinator/reconcile/ended_jobs.h"
#include "coordinator/reconcile/job_dependencies.h"
#include "coordinator/reconcile/job_table.h"
#include "coordinator/reconcile/node_presence.h"
#include "coordinator/reconcile/node_records.h"
#include "coordinator/store/state_store.h"

namespace fsdpd {

class JobCommands {
 public:
  struct Parts {
    JobTable* jobs;
    NodePresence* presence;
    AttemptBook* attempts;
    JobDependencies* dependencies;
    const NodeRecords* records;
    EndedJobs* ended;
    StateStore* store;
    const Clock* clock;
  };

  explicit JobCommands(Parts parts) : parts_(parts) {}

  // ABORTED if `etag` (job_etag.h) is not empty and the job has changed since.
  absl::Status CheckEtag(const std::string& id, const std::string& etag) const;
  absl::StatusOr<v1::Job> Cancel(const std::string& id, const std::string& reason, int64_t grace_ms);
  absl::StatusOr<v1::Job> Pause(const std::string& id, const std::string& reason, int64_t grace_ms);
  absl::StatusOr<v1::Job> Resume(const std::string& id, const std::string& reason);
  absl::StatusOr<v1::Job> Retry(const std::string& id, const std::string& reason);
  // `unconfirmed_nodes`: DeleteJobResponse's.
  absl::StatusOr<v1::Job> Delete(const std::string& id, std::vector<std::string>* unconfirmed_nodes);

  void ResumeAutomatically();  // Per tick: queues jobs again that were preempted or drained.

 private:
  absl::Status RefuseEnded(const std::string& id, const char* what, const char* hint);
  absl::Status Requeue(LiveJob* live, const std::string& reason);
  absl::Status CheckDirectory(const v1::Job& ended);
  std::string PossibleLeftovers(const v1::Job& job) const;

  const Parts parts_;
};

}  // namespace fsdpd
