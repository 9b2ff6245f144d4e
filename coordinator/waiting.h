// Why a job that is QUEUED or PAUSED does not run, for programs: a code, what would unblock it, and which
// jobs it waits for. The sentence for people, with the numbers of each node, is the placer's (placer.h).
//
// Which cause is the one is found by asking the placer again with one obstacle taken away: what would be
// placed then is what waits for that.
//
// Pure.
#pragma once

#include <absl/time/time.h>

#include <string>
#include <vector>

#include "coordinator/placer.h"

namespace fsdpd {

// Of a job that could not be placed on `nodes`, for want of nodes.
v1::Job::Waiting WaitingToBePlaced(const PlaceRequest& request, const std::vector<NodeSlots>& nodes);

// One of `ahead` goes first.
v1::Job::Waiting WaitingBehind(const std::string& ahead);
// Until the date `until`, since its last attempt failed.
v1::Job::Waiting WaitingForTime(absl::Time until);
v1::Job::Waiting WaitingForPlan();
// What is left of its last attempt takes its leave.
v1::Job::Waiting WaitingForRest();
// After the coordinator's start.
v1::Job::Waiting WaitingForAgents();
// Its launch cannot be stored.
v1::Job::Waiting WaitingForDisk();
v1::Job::Waiting WaitingToBeResumed(const std::string& id);

}  // namespace fsdpd
