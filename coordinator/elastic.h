// A job that goes on with fewer ranks than it was submitted with (Restart.elastic), since all of them could
// not be had: in job.resolved and memory_plan is then the plan of the smaller world, and in job.shrunk that
// of all ranks, which every later launch tries first.
//
// Only what had been launched shrinks, and only after an attempt that failed, or whose node left: a job that
// is paused, or gives way, was asked to wait. It is launched where it was, then on other nodes, and only
// then, once all ranks were not to be had for restart.elastic.wait_seconds, with fewer. A job that has fewer
// already waits no more.
//
// Pure.
#pragma once

#include <absl/time/time.h>

#include <string>

#include "coordinator/placer.h"
#include "fsdp/plan/plan.h"
#include "fsdp/plan/spec/smaller_worlds.h"
#include "proto/fsdpd/v1/coordinator.pb.h"

namespace fsdpd {

// Whether its next attempt may have fewer ranks than its spec says.
bool MayShrink(const v1::Job& job);
absl::Duration ShrinkWait(const v1::Job& job);

// The job as it is with all its ranks.
v1::Job WithAllRanks(v1::Job job);
int64_t RanksOf(const v1::Job& job);     // As it is planned now.
int64_t AllRanksOf(const v1::Job& job);  // As its spec says.
bool IsIn(const World& world, const v1::Job& job);

// `plan`: of the smaller world. `why`: all ranks could not be had.
void KeepShrunk(const Plan& plan, const std::string& why, v1::Job* job);

// "launching 2 of 4 ranks on a: WHY", for what has been launched with fewer.
std::string ShrunkWords(const v1::Job& job, const PlaceDecision& decision);

}  // namespace fsdpd
