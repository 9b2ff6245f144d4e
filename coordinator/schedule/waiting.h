// Machine-readable reason why a QUEUED or PAUSED job does not run: a code, the condition that would unblock
// it, and the jobs that it waits for. The placer writes the sentence for users, with the numbers of each node
// (placer.h).
//
// The cause is found by calling the placer again with one obstacle removed: if the job can be placed then,
// that obstacle is the cause.
//
// Pure.
#pragma once

#include <absl/time/time.h>

#include <string>
#include <vector>

#include "coordinator/schedule/placer.h"

namespace fsdpd {

// For a job that could not be placed on `nodes`.
v1::Job::Waiting WaitingToBePlaced(const PlaceRequest& request, const std::vector<NodeSlots>& nodes);

// A job in `ahead` has precedence.
v1::Job::Waiting WaitingBehind(const std::string& ahead);
// Until the date `until`, because the last attempt failed.
v1::Job::Waiting WaitingForTime(absl::Time until);
v1::Job::Waiting WaitingForPlan();
// Ranks of the last attempt are still stopping.
v1::Job::Waiting WaitingForRest();
// Agents may still reconnect after the coordinator's start.
v1::Job::Waiting WaitingForAgents();
// The launch cannot be stored.
v1::Job::Waiting WaitingForDisk();
v1::Job::Waiting WaitingToBeResumed(const std::string& id);

}  // namespace fsdpd
