// What a failed attempt was the fault of, and what follows from that for the next one: whether there is any,
// after which wait, and where. Nothing is read out of an error's words: a cause is what agents and ranks say
// by fields (RankFault), or what the coordinator saw itself.
//
//   * What every attempt would meet again ends the job at once. So does any other configuration or data
//     error before the job's first step: a person must fix it. Exception: RankFault.node_only is retried
//     once, on another node where one has capacity. After a step the files were there once and may come
//     back, as on a volume that is not mounted: other attempts follow.
//   * A last checkpoint that found no room ends the job too: it would train to its end again, for nothing as
//     long as nobody has made room, and who has knows it.
//   * Where checkpoints are on, three attempts in a row that came no further than the one before end the job,
//     however many it may have. Attempts that a node spoiled say nothing of the job, and are not among them.
//   * A node is to blame where the job had no part in it: it was lost, or its agent was; a device did not
//     answer, or a rank could not be started, at a launch; the kernel does not let a rank go. A rank that
//     crashes, or that somebody kills, is not its node's fault: a job that crashes by itself does so on every
//     node.
//
// Pure. Nothing depends on a clock.
#pragma once

#include <absl/time/time.h>

#include <string>

#include "proto/fsdpd/v1/coordinator.pb.h"

namespace fsdpd {

constexpr int kMaxFailedAttempts = 16;  // That a job keeps.
constexpr int kAttemptsInVain = 3;

// Sets `cause`, and whether the node is to blame as far as that follows from it, by the failure's other
// fields. That of a node that was lost is its owner's to say (verdict.h), who knows when it is not.
void Classify(v1::Job::Failure* failure);

// " by its node": what a rank failed by other than itself; "" for others.
const char* ByWhat(v1::FailureCause cause);

// Keeps job.failure() among the job's failed attempts; again, where a later word has named another cause.
void KeepFailedAttempt(v1::Job* job);

// Why there is no other attempt whatever restart.max_attempts allows; "" where there may be one. `failure`:
// of job.attempt(). Where that is since the job came no further, the cause becomes NO_PROGRESS.
std::string WhyNoOther(const v1::Job& job, v1::Job::Failure* failure);

// The delay from a failure to the next attempt: an attempt that fails immediately would fail again, and jobs
// that failed together would restart together. Doubles from a second up to a minute, minus up to half of it:
// how much follows from the job and its attempt, so a restarted coordinator uses the same delay.
absl::Duration RetryDelay(const v1::Job& job);

// The node that the next attempt had better not have; "" for none.
std::string NodeToAvoid(const v1::Job& job);

}  // namespace fsdpd
