// What a failure cost until the job was where it had been, by phase, of the job's own events: a coordinator
// that restarts meanwhile tells it as well. Phases follow each other, and all but the last together are the
// time from the failure until all ranks of the next attempt were up.
//
//   stop       the failed attempt's ranks were leaving
//   queue      it waited: for its next try (failure_policy.h), then for slots
//   preflight  its nodes were measured
//   start      ranks were started, and connected
//   load       a checkpoint was found, checked and read
//   replay     steps were made again that nothing had saved
//
// To a ledger (job_ledger.h) the first two are `restart`. Attempts that fail before all of their ranks are up
// are part of the recovery that they were to be.
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

// 0 where somebody has set the date back meanwhile.
double SecondsBetween(int64_t begin_unix_nanos, int64_t end_unix_nanos);

// Of a job that has just become STARTING: a failure led to this attempt, and nobody who resumed it or had it
// again.
bool IsRestart(const v1::Job& job);

// Seconds of all phases but the replay, of a RUNNING job. Nothing where no failure led to its newest attempt,
// or where somebody had paused the job since, or it had ended.
std::optional<std::map<std::string, double>> RecoveryOf(const v1::Job& job);

// Of a job that has just become RUNNING: what was lost, if anything, is made again already.
bool HasNoReplay(const v1::Job& job);

// Seconds of a replay that ends before its last step, as the RUNNING job fails again or is told to leave.
// Nothing where all that was lost is made again, or in an attempt that no failure led to.
std::optional<double> BrokenReplayOf(const v1::Job& job, absl::Time now);

// Seconds of the replay that the job's last step has ended. `last`: the step before it that was told, of this
// attempt (0: none). `newest`: that any attempt had made until then. Nothing where it has ended none, or that
// of no recovery.
std::optional<double> ReplayOf(const v1::Job& job, int64_t last, int64_t newest, absl::Time now);

}  // namespace fsdpd
