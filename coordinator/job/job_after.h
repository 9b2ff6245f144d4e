// Dependencies between jobs (SubmitJobRequest.after): a job that waits until other jobs have succeeded.
//
// A dependency that has succeeded counts forever, even if that job is deleted later: the waiting job records
// it. A dependency that failed or was cancelled may still succeed after a retry: the waiting job remains
// queued, reports this with the fix, and reserves no slots meanwhile. A dependency that is deleted without
// success can never succeed and ends the waiting job; a DeleteJob call for such a job is refused while
// another job waits for it. Cycles cannot occur: a job can only wait for older jobs.
//
// Pure.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "proto/fsdpd/v1/coordinator.pb.h"

namespace fsdpd {

// State of a job by id; UNSPECIFIED if the job no longer exists.
using StateOfJob = std::function<v1::JobState(const std::string& id)>;

// Job ids as a list for a sentence, abbreviated if there are many.
std::string JobNames(std::vector<std::string> ids);

bool WaitsForJobs(const v1::Job& job);
// Whether `job` waits for the job `id`.
bool WaitsForJob(const v1::Job& job, const std::string& id);

struct DependencyChanges {
  std::vector<std::string> succeeded;  // Since the last call.
  std::string gone;                    // A job that can never succeed; empty if none.
};
// REQUIRES: WaitsForJobs(job).
DependencyChanges CheckDependencies(const v1::Job& job, const StateOfJob& state_of);

// Records the dependencies that have succeeded.
void RecordSucceeded(const DependencyChanges& changes, v1::Job* job);

// The reason for waiting, for users and for programs. REQUIRES: WaitsForJobs(job).
std::string AfterReason(const v1::Job& job, const StateOfJob& state_of);
v1::Job::Waiting WaitingForJobs(const v1::Job& job, const StateOfJob& state_of);

}  // namespace fsdpd
