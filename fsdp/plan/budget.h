// Whether a step fits the memory of its device, and what to change when it does not. Decides what advice a
// refused job gets: who writes it into the spec, and nothing else, gets a job that fits, with the peak that
// was told.
//
// Pure. It compiles up to some dozens of programs when a job does not fit, and none when it does.
#pragma once

#include <optional>

#include "base/violation.h"
#include "fsdp/plan/memory/memory.h"
#include "proto/fsdpd/v1/job.pb.h"

namespace fsdpd {

constexpr char kMemoryOverBudget[] = "memory_over_budget";  // The rule of its fault.

// A fault that names the component that overflows and the smallest change that would fit; empty when it fits
// or the spec has no budget. `job` as it was written, `auto` still open, and `spec` what became of it.
// Changes are tried alone, from the one that costs the job least: a smaller micro-batch, recompute,
// activations in host memory, gathering each pass, more sharding, narrower moments and gradients, the
// optimizer's state in host memory; then together, and beside that on more nodes. None changes the samples of
// a step without saying so. What was found of late is remembered, and one search runs at a time. Thread-safe.
Violations CheckBudget(const v1::JobSpec& job, const Spec& spec, const StepMemory& memory);

// The same fault without the change, for which nothing is compiled.
std::optional<Violation> OverBudget(const Spec& spec, const StepMemory& memory);

}  // namespace fsdpd
