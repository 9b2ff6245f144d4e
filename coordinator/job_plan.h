// The plan that a job is launched with: its resolved spec and what that needs of memory, made once and kept
// in the job, so that every node, every attempt and every reader has the same. While too few nodes are there
// to know what a rank may fill (placer.h, MemoryOffer), it stays open, and is made anew when there are
// enough.
//
// Pure.
#pragma once

#include <string>

#include "coordinator/placer.h"
#include "fsdp/plan/plan.h"
#include "proto/fsdpd/v1/coordinator.pb.h"

namespace fsdpd {

// Whether the job's plan is to be made before it can be placed.
bool IsPlanOpen(const v1::Job& job);

// Whether a plan with this offer would have to be made again: it depends on what is offered, and that may
// change.
bool LeavesPlanOpen(const v1::JobSpec& spec, const MemoryOffer& offer);

// The job's spec with its defaults, `auto` only where it has been chosen.
v1::JobSpec FilledSpec(const v1::Job& job);

// What nodes must have for the job; without memory while the plan is open.
PlaceRequest RequestOf(const v1::Job& job);

// REQUIRES: plan.accepted().
void KeepPlan(const Plan& plan, bool open, v1::Job* job);

// Whether it was refused for its memory alone, which roomier nodes would mend.
bool IsOnlyTooLarge(const Plan& refused);
// The faults for which it was refused; several are a list, a line each.
std::string WhyRefused(const Plan& refused);

}  // namespace fsdpd
