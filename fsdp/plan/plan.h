// The whole way from a job spec to a verified program: what the coordinator and fsdpctl do at submit, and
// what every rank does again before it starts.
#pragma once

#include <absl/status/statusor.h>

#include "base/violation.h"
#include "fsdp/plan/memory/memory.h"
#include "fsdp/plan/resolve.h"
#include "fsdp/plan/verify/verify.h"
#include "proto/fsdpd/v1/plan.pb.h"

namespace fsdpd {

struct Plan {
  v1::JobSpec resolved;
  std::vector<Choice> choices;
  // Everything that was found, memory included where the other faults do not bear on it. When CheckJob()
  // found an error or something is unread, nothing else is set. When the plan is over the memory budget,
  // everything is set, so that the memory table can be shown beside the fault.
  Violations faults;
  Spec spec;
  ModelFacts model;
  Layout layout;
  Program program;     // A training step.
  Program evaluation;  // In the same arena; run only where the spec asks for evaluation.
  StepMemory memory;

  bool accepted() const { return !HasErrors(faults); }
};

// Never fails: faults of the spec are in the plan, and so are ours (a program that does not verify, a check
// that fails), as the fault `compiler_bug` alone; they are logged with the spec. `budget_bytes_per_rank`:
// what nodes offer; 0 when not known. `unread` as CheckJob() takes it.
Plan MakePlan(const v1::JobSpec& job, int64_t budget_bytes_per_rank,
              const std::vector<std::string>& unread = {});

// Of one of many ways to run a job: where it is over the budget the fault has no fix, whose search compiles
// dozens of programs, and there is no evaluation.
Plan PlanWithoutAdvice(const v1::JobSpec& job, int64_t budget_bytes_per_rank);

// The plan of a job that is about to run here. INVALID_ARGUMENT lists every error of a spec that is refused,
// one a line.
absl::StatusOr<Plan> AcceptedPlan(const v1::JobSpec& job);

// That fault, for what else a spec is put through; `why`: of GuardChecks(). Logs.
Violation CompilerBug(const v1::JobSpec& job, const absl::Status& why);

v1::Plan ToProto(const Plan& plan);
v1::Mesh ToProto(const Mesh& mesh);
std::string HashText(const Program& program);
v1::MemoryPlan ToProto(const StepMemory& memory);
v1::Fault ToProto(const Violation& violation);

}  // namespace fsdpd
