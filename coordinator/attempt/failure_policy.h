// Failure attribution and retry policy: the cause of a failed attempt, and whether, when and where the next
// attempt runs. Error texts are never parsed: a cause comes from fields that agents and ranks report
// (ErrorClass), or from what the coordinator observed itself.
//
//   * An error that every attempt would repeat ends the job immediately. So does any other configuration or
//     data error before the job's first step, because a user must fix it. Exception: ErrorClass.node_only is
//     retried once, on another node if one has capacity. After a step the files were readable once and may
//     return (a volume that was not mounted), so more attempts follow.
//   * A final checkpoint without disk space ends the job: another attempt would train to the end again. A
//     full disk of one node (ErrorClass.node_only) is like an error of its files.
//   * With checkpoints, three attempts in a row without progress over the one before end the job, regardless
//     of restart.max_attempts. Attempts that failed because of a node do not count.
//   * A node is blamed if the job did not cause the failure: the node or its agent was lost, a device did not
//     respond or a rank could not be started at a launch, or the kernel does not release a rank. A rank that
//     crashes or is killed does not blame its node, because a job that crashes does so on every node.
//
// Pure, and independent of clocks.
#pragma once

#include <absl/time/time.h>

#include <set>
#include <string>

#include "proto/fsdpd/v1/coordinator.pb.h"

namespace fsdpd {

constexpr int kMaxFailedAttempts = 16;  // Retained per job.
constexpr int kMaxAttemptsWithoutProgress = 3;

// Sets `cause`, and whether the node is blamed as far as that follows from the cause, from the failure's
// other fields. For a lost node the caller decides (verdict.h), because it knows the exceptions.
void Classify(v1::Job::Failure* failure);

// " by its node": the cause of a rank's failure other than the rank itself; "" otherwise.
const char* CauseText(v1::FailureCause cause);

// Appends job.failure() to the job's failed attempts; replaces the entry if a later report changed the cause.
void KeepFailedAttempt(v1::Job* job);

// Why no other attempt follows, regardless of restart.max_attempts; "" if one may. `failure`: of
// job.attempt(). If the reason is missing progress, the cause becomes NO_PROGRESS.
std::string WhyNoRetry(const v1::Job& job, v1::Job::Failure* failure);

// The delay from a failure to the next attempt. An attempt that fails immediately would fail again, and jobs
// that failed together would restart together. It doubles from one second up to a minute, minus up to half of
// it. The jitter is a function of the job and its attempt, so that a restarted coordinator uses the same
// delay.
absl::Duration RetryDelay(const v1::Job& job);

// Nodes that the next attempt should avoid: those that may be the cause of the newest failure, and of
// failures of the same kind directly before it.
std::set<std::string> NodesToAvoid(const v1::Job& job);

}  // namespace fsdpd
