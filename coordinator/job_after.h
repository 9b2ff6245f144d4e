// Jobs that wait for others to succeed (SubmitJobRequest.after): what is known of those, and what that means.
//
// One that has succeeded counts for ever, whatever becomes of it later: a waiting job notes it. One that has
// failed or was cancelled may still succeed, since somebody may try it again: the waiting job stays queued,
// says so and what helps, and holds no place meanwhile. Only one that is forgotten without having succeeded
// never can, and ends who waits for it; to delete one by hand is refused while somebody waits.
// No circle can come about: who waits is always younger than what it waits for.
//
// Pure.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "proto/fsdpd/v1/coordinator.pb.h"

namespace fsdpd {

// Of a job by its id; UNSPECIFIED: there is none any more.
using StateOfJob = std::function<v1::JobState(const std::string& id)>;

// Of jobs by their ids, in a sentence: not more than it can hold.
std::string JobNames(std::vector<std::string> ids);

bool WaitsForJobs(const v1::Job& job);
// `id` is among those.
bool WaitsForJob(const v1::Job& job, const std::string& id);

struct AfterNews {
  std::vector<std::string> succeeded;  // Since the job was last looked at.
  std::string gone;                    // One that can never succeed; empty where none is.
};
// REQUIRES: WaitsForJobs(job).
AfterNews LookAfter(const v1::Job& job, const StateOfJob& state_of);

// Notes what has succeeded.
void KeepSucceeded(const AfterNews& news, v1::Job* job);

// Why it waits, for people and for programs. REQUIRES: WaitsForJobs(job).
std::string AfterReason(const v1::Job& job, const StateOfJob& state_of);
v1::Job::Waiting WaitingForJobs(const v1::Job& job, const StateOfJob& state_of);

}  // namespace fsdpd
