// Recovery time of a failed job by phase, computed from the job's own events, so that a restarted coordinator
// returns the same numbers. Phases are consecutive. All but the last add up to the time from the failure
// until all ranks of the next attempt are ready.
//
//   stop       the failed attempt's ranks were stopping
//   queue      the job waited for its retry delay (failure_policy.h), then for slots
//   preflight  its nodes were measured
//   start      ranks were started and connected
//   load       a checkpoint was found, verified and read
//   replay     steps since the checkpoint were repeated
//
// The goodput ledger (job_ledger.h) counts the first two as `restart`. Attempts that fail before all of their
// ranks are ready belong to the recovery that they were part of.
//
// Pure.
#pragma once

#include <absl/time/time.h>

#include <map>
#include <optional>
#include <string>

#include "proto/fsdpd/v1/coordinator.pb.h"

namespace fsdpd {

constexpr const char* kRecoveryPhases[] = {"stop", "queue", "preflight", "start", "load", "replay"};

// Returns 0 if the date was set back in between.
double SecondsBetween(int64_t begin_unix_nanos, int64_t end_unix_nanos);

// For a job that just became STARTING: whether this attempt follows a failure, and not a resume or retry.
bool IsRestart(const v1::Job& job);

// Seconds of all phases except the replay, for a RUNNING job. Empty if its newest attempt does not follow a
// failure, or if the job was paused or ended since.
std::optional<std::map<std::string, double>> RecoveryOf(const v1::Job& job);

// For a job that just became RUNNING: whether no step is repeated.
bool HasNoReplay(const v1::Job& job);

// Seconds of a replay that ends early because the RUNNING job fails again or is stopped. Empty if all lost
// steps were repeated, or in an attempt that does not follow a failure.
std::optional<double> BrokenReplayOf(const v1::Job& job, absl::Time now);

// Seconds of the replay that the job's last step completed. `last`: the previously reported step of this
// attempt (0: none). `newest`: the newest step of any attempt before this one. Empty if the step completed no
// replay, or one outside a recovery.
std::optional<double> ReplayOf(const v1::Job& job, int64_t last, int64_t newest, absl::Time now);

}  // namespace fsdpd
