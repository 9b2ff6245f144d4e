// Elastic training: a job that continues with fewer ranks than submitted (Restart.elastic) because not all
// were available. job.resolved and memory_plan then have the plan of the smaller world size, and job.shrunk
// has that of all ranks, which every later launch tries first.
//
// Only a job that has been launched shrinks, and only after an attempt that failed or whose node left. A
// paused or preempted job was asked to wait instead. The order is: launch on the same nodes; then on other
// nodes; then, when all ranks were unavailable for restart.elastic.wait_seconds, with fewer. A job that
// already has fewer ranks does not wait again.
//
// Pure.
#pragma once

#include <absl/time/time.h>

#include <string>

#include "coordinator/schedule/placer.h"
#include "fsdp/plan/plan.h"
#include "fsdp/plan/spec/smaller_worlds.h"
#include "proto/fsdpd/v1/coordinator.pb.h"

namespace fsdpd {

// Whether the next attempt may have fewer ranks than the spec.
bool MayShrink(const v1::Job& job);
absl::Duration ShrinkWait(const v1::Job& job);

// The job with the plan of all its ranks.
v1::Job WithAllRanks(v1::Job job);
int64_t RanksOf(const v1::Job& job);     // In its current plan.
int64_t AllRanksOf(const v1::Job& job);  // In its spec.
bool IsIn(const World& world, const v1::Job& job);

// `plan`: of the smaller world size. `why`: why all ranks were not available.
void KeepShrunk(const Plan& plan, const std::string& why, v1::Job* job);

// "launching 2 of 4 ranks on a: WHY", for a launch with fewer ranks.
std::string ShrunkReason(const v1::Job& job, const PlaceDecision& decision);

}  // namespace fsdpd
