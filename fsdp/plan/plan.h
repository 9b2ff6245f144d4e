// The whole way from a job spec to a verified program: what the coordinator and fsdpctl do at submit, and
// what every rank does again before it starts.
#pragma once

#include <absl/status/statusor.h>

#include <memory>
#include <string>
#include <vector>

#include "base/violation.h"
#include "fsdp/plan/memory/memory.h"
#include "fsdp/plan/program/fingerprint.h"
#include "fsdp/plan/resolve.h"
#include "fsdp/plan/verify/verify.h"
#include "proto/fsdpd/v1/plan.pb.h"

namespace fsdpd {

// What the ranks of one stage run (the pipeline axis). Elsewhere there is one: the whole model.
struct StagePlan {
  ModelFacts model;
  Layout layout;
  Program program;     // A training step.
  Program evaluation;  // In the same arena; run only where the spec asks for evaluation.
  StepMemory memory;
};

// Of a job with several stages it is the plan of one of them: the one that needs most memory, or a rank's
// own.
struct Plan : StagePlan {
  v1::JobSpec resolved;
  std::vector<Choice> choices;
  // Everything that was found, memory included where the other faults do not bear on it. When CheckJob()
  // found an error or something is unread, nothing else is set. When the plan is over the memory budget,
  // everything is set, so that the memory table can be shown beside the fault.
  Violations faults;
  Spec spec;
  // Null where there is one stage.
  std::shared_ptr<const std::vector<StagePlan>> stages;
  std::shared_ptr<const Layout> all_units;

  bool accepted() const { return !HasErrors(faults); }
  // Of the model as a whole.
  const Layout& whole_layout() const { return all_units != nullptr ? *all_units : layout; }
  const StagePlan& StageOf(int64_t rank) const;
};

// Pinned host memory of a node's ranks together, of the node whose ranks take most: all offload, and
// snapshots are taken by those that have a first copy. REQUIRES: accepted().
int64_t HostBytesOfNode(const Plan& plan);

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

// As the rank runs it.
Plan PlanOfRank(const Plan& plan, int64_t rank);

// By unit of the rank's stage and parameter, where it begins among all parameters in the order of the chain.
std::vector<std::vector<int64_t>> FirstElements(const Plan& plan, int64_t rank);

// What ranks compare before they start: of several stages all of them, so that ranks whose programs differ
// agree on what each of them runs.
std::vector<std::string> FingerprintOf(const Plan& plan);

// That fault, for what else a spec is put through; `why`: of GuardChecks(). Logs.
Violation CompilerBug(const v1::JobSpec& job, const absl::Status& why);

v1::Plan ToProto(const Plan& plan);
v1::Mesh ToProto(const Mesh& mesh);
std::string HashText(const Plan& plan);
v1::MemoryPlan ToProto(const StepMemory& memory);
v1::Fault ToProto(const Violation& violation);

}  // namespace fsdpd
