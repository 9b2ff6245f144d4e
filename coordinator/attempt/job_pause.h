// Pausing of jobs: which jobs may be paused, and what PAUSED guarantees. Ranks save after the same step and
// exit, as for a cancelled job. The job becomes PAUSED when all are gone, with the step of the newest
// committed checkpoint. Steps that ranks could not save in time are counted and reported with the reason.
//
// Ranks on a lost node may still train and save, so the job remains PAUSING until the agent is back, however
// long that takes. A user who knows the state of the node can resume or cancel the job.
//
// A paused attempt does not count against restart.max_attempts, unless it had failed by itself before.
//
// Pure.
#pragma once

#include <string>
#include <vector>

#include "coordinator/attempt/attempt_facts.h"
#include "proto/fsdpd/v1/coordinator.pb.h"

namespace fsdpd {

// Why the job may not be paused, and the fix; empty if it may be, or already is. `grace_ms`: 0 requests no
// save.
std::string WhyNotPaused(const v1::Job& job, int64_t grace_ms);

// The pause of a PAUSING job once its ranks are gone. `why`: why nothing was saved, as far as that is known;
// ignored if everything was saved. `unconfirmed`: lost nodes whose ranks may still run; only their earlier
// reports are known.
v1::Job::Pause PauseOf(const v1::Job& job, const std::string& why,
                       const std::vector<std::string>& unconfirmed = {});
std::string PausedReason(const v1::Job& job, const v1::Job::Pause& pause);
// The reason of a job that remains PAUSING because of these nodes.
std::string UnconfirmedText(const std::vector<std::string>& nodes);

// Adds the memory state of the GPUs of an attempt that is gone.
void AddFreedMemory(const std::vector<NodePart>& parts, v1::Job::Pause* pause);

// What happens to a job that waits for ranks on nodes that do not report their exit; "" if it is STOPPING.
std::string NextStepText(const v1::Job& job);

// For the cancellation of a job without ranks: where it could resume from, if it ever ran. REQUIRES: QUEUED
// or PAUSED.
std::string IdleCancelReason(const v1::Job& job);

// Edits of a transition to PAUSED: of a job whose ranks are gone, and of a job that had none.
void KeepPause(const v1::Job::Pause& pause, v1::Job* job);
void SetHold(v1::Job* job);

}  // namespace fsdpd
