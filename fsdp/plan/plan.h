// The planner: compiles a job spec into a verified program with its layout and memory estimate. The
// coordinator and fsdpctl run it at submit; every rank runs it again before it starts and compares
// fingerprints.
//
// Pure functions; thread-safe. Errors in a spec are reported in Plan::violations, not as a Status (except by
// AcceptedPlan).
#pragma once

#include <absl/status/statusor.h>

#include <memory>
#include <string>
#include <vector>

#include "base/spec_text/violation.h"
#include "fsdp/plan/memory/memory.h"
#include "fsdp/plan/program/fingerprint.h"
#include "fsdp/plan/resolve.h"
#include "fsdp/plan/verify/verify.h"
#include "proto/fsdpd/v1/plan.pb.h"

namespace fsdpd {

// The plan of one pipeline stage. Without pipeline parallelism there is one stage: the whole model.
struct StagePlan {
  ModelFacts model;
  Layout layout;
  Program program;     // A training step.
  Program evaluation;  // Uses the training arena; runs only if the spec enables evaluation.
  StepMemory memory;
};

// The StagePlan base is the whole model, or with pipeline parallelism one stage: the stage with the highest
// peak memory (MakePlan), or the stage of a given rank (PlanOfRank).
struct Plan : StagePlan {
  v1::JobSpec resolved;
  std::vector<Choice> choices;
  // All violations, including the memory check if the other errors do not affect memory. If CheckJob() found
  // an error or a field could not be parsed, no other field is set. If the plan only exceeds the memory
  // budget, every field is set, so that the memory table can be printed next to the error.
  Violations violations;
  Spec spec;
  std::string program_hash;  // Of FingerprintOf(); the same on all ranks.
  // Null with one stage.
  std::shared_ptr<const std::vector<StagePlan>> stages;
  std::shared_ptr<const Layout> all_units;

  bool accepted() const { return !HasErrors(violations); }
  // The layout of the whole model, over all stages.
  const Layout& full_layout() const { return all_units != nullptr ? *all_units : layout; }
  const StagePlan& StageOf(int64_t rank) const;
};

// Pinned host memory of one node in bytes: the sum over its ranks, on the node with the largest sum. Every
// rank offloads; only ranks that hold the first copy of a bucket take snapshots. REQUIRES: accepted().
int64_t HostBytesOfNode(const Plan& plan);

// Plans a job. Never fails: violations of rules are in Plan::violations. An internal error (a program that
// fails verification, a failed check) is reported as the single violation `compiler_bug` and logged with the
// spec. `budget_bytes_per_rank`: memory that nodes offer; 0 if unknown. `unparsed`: see CheckJob().
Plan MakePlan(const v1::JobSpec& job, int64_t budget_bytes_per_rank,
              const std::vector<std::string>& unparsed = {});

// Plans one of many candidate configurations: skips the search for a fix if the plan exceeds its budget (that
// search compiles dozens of programs), and skips evaluation.
Plan PlanWithoutAdvice(const v1::JobSpec& job, int64_t budget_bytes_per_rank);

// Plans a job that is about to run on this host. INVALID_ARGUMENT lists every error of a rejected spec, one
// per line.
absl::StatusOr<Plan> AcceptedPlan(const v1::JobSpec& job);

// The plan of this rank's pipeline stage.
Plan PlanOfRank(const Plan& plan, int64_t rank);

// Offset of each parameter of the rank's stage in the concatenation of all parameters in model order; indexed
// by unit, then by parameter.
std::vector<std::vector<int64_t>> FirstElements(const Plan& plan, int64_t rank);

// The lines that ranks compare before they start. With pipeline parallelism they cover all stages, so that
// ranks with different programs agree on the program of every stage.
std::vector<std::string> FingerprintOf(const Plan& plan);

// The `compiler_bug` violation for other checks of a spec. `why`: the status from GuardChecks(). Logs the
// spec.
Violation CompilerBug(const v1::JobSpec& job, const absl::Status& why);

v1::Plan ToProto(const Plan& plan);
v1::Mesh ToProto(const Mesh& mesh);
v1::MemoryPlan ToProto(const StepMemory& memory);
v1::Violation ToProto(const Violation& violation);

}  // namespace fsdpd
