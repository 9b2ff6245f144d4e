// Whether a step fits the memory of its device, and what to change when it does not. Decides what advice a
// refused job gets; the change that is named has been planned and fits.
//
// Pure. It compiles up to some dozens of programs when a job does not fit, and none when it does.
#pragma once

#include "base/violation.h"
#include "fsdp/plan/memory.h"

namespace fsdpd {

// A fault that names the component that overflows and the smallest change that would fit; empty when it fits
// or the spec has no budget. Changes are tried alone, from the one that costs the job least: a smaller
// micro-batch, recompute, gathering each pass, more sharding, bf16 moments, more ranks; then together.
Violations CheckBudget(const Spec& spec, const StepMemory& memory);

}  // namespace fsdpd
