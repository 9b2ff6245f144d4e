// Plan of a job for launches: its resolved spec and memory requirement, made once and stored in the job, so
// that all nodes, attempts and readers use the same. While too few nodes are connected to know the memory per
// rank (placer.h, MemoryOffer), the plan stays open, and it is made again once there are enough.
//
// Pure.
#pragma once

#include <cstdint>
#include <string>

#include "coordinator/schedule/placer.h"
#include "fsdp/plan/plan.h"
#include "proto/fsdpd/v1/coordinator.pb.h"

namespace fsdpd {

// Whether the job's plan must be made before it can be placed.
bool IsPlanOpen(const v1::Job& job);

// Whether a plan with this offer must be made again later: it depends on the offered memory, which may
// change.
bool LeavesPlanOpen(const v1::JobSpec& spec, const MemoryOffer& offer);

// The job's spec with defaults; `auto` only remains where no value was chosen.
v1::JobSpec FilledSpec(const v1::Job& job);

// Requirements of the job on nodes; without memory while the plan is open.
PlaceRequest RequestOf(const v1::Job& job);

// REQUIRES: plan.accepted().
void KeepPlan(const Plan& plan, bool open, v1::Job* job);

// Takes the number of steps that ranks computed from the data, if the job has train.epochs.
void KeepSteps(int64_t steps, v1::Job* job);

// Whether the plan was rejected only for its memory, so that nodes with more memory would fit it.
bool IsOnlyTooLarge(const Plan& refused);
// The violations for which it was rejected; several are a list with a line each.
std::string WhyRefused(const Plan& refused);

}  // namespace fsdpd
