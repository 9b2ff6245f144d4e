// Memory-budget check, and the suggested fix for a job that exceeds its budget. Contract: a user who applies
// only the suggested change gets a job that fits, with the predicted peak that the error printed.
//
// Pure. Compiles no program if the job fits, and a few dozen if it does not.
#pragma once

#include <optional>

#include "base/spec_text/violation.h"
#include "fsdp/plan/memory/memory.h"
#include "proto/fsdpd/v1/job.pb.h"

namespace fsdpd {

constexpr char kMemoryOverBudget[] = "memory_over_budget";  // Rule id of the violation.

// Returns a violation that names the largest component and the smallest change that would fit; empty if the
// step fits or the spec has no budget. `job` is the spec as written, with `auto` unresolved; `spec` is its
// resolved form.
//
// Single changes are tried first, from the cheapest: smaller micro-batch, recompute, activation offload,
// gather per pass, more sharding, narrower moments and gradients, optimizer offload. Then combinations, then
// more nodes. A change of the global batch is always stated in the fix. Recent results are cached, and one
// search runs at a time. Thread-safe.
Violations CheckBudget(const v1::JobSpec& job, const Spec& spec, const StepMemory& memory);

// The same violation without a fix; compiles nothing.
std::optional<Violation> OverBudget(const Spec& spec, const StepMemory& memory);

}  // namespace fsdpd
