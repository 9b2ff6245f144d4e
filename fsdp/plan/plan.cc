#include "fsdp/plan/plan.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>

#include <algorithm>
#include <optional>

#include "base/check.h"
#include "base/check_guard.h"
#include "base/log.h"
#include "base/text.h"
#include "fsdp/plan/budget.h"
#include "fsdp/plan/predict/cost.h"
#include "fsdp/plan/program/traffic.h"
#include "fsdp/plan/rules/rules.h"
#include "fsdp/plan/rules/sized_job.h"

namespace fsdpd {
namespace {

v1::Severity ToProto(FaultLevel level) {
  switch (level) {
    case FaultLevel::kError:
      return v1::SEVERITY_ERROR;
    case FaultLevel::kAdjust:
      return v1::SEVERITY_ADJUST;
    case FaultLevel::kWarn:
      return v1::SEVERITY_WARN;
  }
  return v1::SEVERITY_UNSPECIFIED;
}

void AddUnits(const Plan& plan, v1::Plan* proto) {
  for (size_t u = 0; u < plan.layout.units.size(); ++u) {
    const UnitLayout& layout = plan.layout.units[u];
    v1::Plan::Unit* unit = proto->add_units();
    unit->set_name(layout.name);
    for (const int b : layout.buckets) {
      const Bucket& bucket = plan.layout.buckets[b];
      unit->set_parameters(unit->parameters() + bucket.elements * bucket.slices);
      unit->set_gathered_bytes(unit->gathered_bytes() + bucket.gathered_bytes());
      unit->set_shard_bytes(unit->shard_bytes() + bucket.main_elements * BytesOf(bucket.types.main));
    }
    const Recompute recompute = RecomputeOf(plan.spec, plan.model, static_cast<int>(u));
    for (const UnitExchange& exchange : plan.model.units[u].exchanges) {
      unit->set_exchanged_bytes(unit->exchanged_bytes() +
                                ReceivedBytes(plan.spec.mesh, exchange, exchange.forward_elements) +
                                ReceivedBytes(plan.spec.mesh, exchange, exchange.backward_elements));
    }
    unit->set_activation_bytes(plan.model.units[u].kept_bytes.With(recompute));
  }
}

void AddInstructions(const Plan& plan, v1::Plan* proto) {
  for (const Instruction& from : plan.program.instructions) {
    v1::Plan::Instruction* to = proto->add_instructions();
    to->set_op(NameOf(from.op));
    if (from.unit >= 0) to->set_unit(plan.layout.units[from.unit].name);
    to->set_micro_batch(from.micro_batch);
    to->set_lane(NameOf(from.lane));
    for (const int index : from.after) to->add_after(index);
  }
}

Plan MakeUnguarded(const v1::JobSpec& job, int64_t budget_bytes_per_rank,
                   const std::vector<std::string>& unread);
void Compile(const v1::JobSpec& job, int64_t budget_bytes_per_rank, Plan* plan);

// A budget is no need: the job is placed where its plan fits, if there is such a node. So it is a warning.
void WarnOfLargeBudget(const v1::JobSpec& job, int64_t offered_bytes, Violations* faults) {
  const int64_t budget = job.resources().memory_budget_bytes();
  if (offered_bytes <= 0 || budget <= offered_bytes) return;
  faults->push_back(
      {"budget_above_offer", FaultLevel::kWarn, "resources.memory_budget_bytes",
       absl::StrCat("the budget is ", HumanBytes(budget), " and what is offered is ",
                    HumanBytes(offered_bytes),
                    " per rank: a step that needs more than that is not launched on such nodes"),
       "leave it out for what the nodes offer", "", ""});
}

// Of a spec that is refused for other reasons: it is told now that it would not fit either.
Violations MemoryFaultsBeside(const v1::JobSpec& job, int64_t budget_bytes_per_rank, const Violations& found,
                              std::vector<std::string> faulty_fields) {
  for (const Violation& fault : found) {
    if (fault.level == FaultLevel::kError) faulty_fields.push_back(fault.field);
  }
  const std::optional<v1::JobSpec> sized = SizedJob(job, faulty_fields);
  if (!sized.has_value() || HasErrors(CheckJob(*sized))) return {};
  Violations of_memory = MakeUnguarded(*sized, budget_bytes_per_rank, {}).faults;
  of_memory.erase(std::remove_if(of_memory.begin(), of_memory.end(),
                                 [](const Violation& fault) { return fault.level != FaultLevel::kError; }),
                  of_memory.end());
  return of_memory;
}

Plan MakeUnguarded(const v1::JobSpec& job, int64_t budget_bytes_per_rank,
                   const std::vector<std::string>& unread) {
  Plan plan;
  plan.faults = CheckJob(job, unread);
  if (HasErrors(plan.faults) || !unread.empty()) {
    for (Violation& fault : MemoryFaultsBeside(job, budget_bytes_per_rank, plan.faults, unread)) {
      plan.faults.push_back(std::move(fault));
    }
    return plan;
  }
  Compile(job, budget_bytes_per_rank, &plan);
  const Spec& spec = plan.spec;
  plan.evaluation = CompileEvaluation(spec, plan.model, plan.layout, plan.program);
  WarnOfLargeBudget(job, budget_bytes_per_rank, &plan.faults);
  for (Violation& fault : CheckBudget(job, spec, plan.memory)) plan.faults.push_back(std::move(fault));
  // Over budget the program is shown but never run, and rule 7 of the verifier would call it a bug.
  if (!plan.accepted()) return plan;
  FSDPD_CHECK_OK(Verify(plan.program, plan.layout, spec));
  FSDPD_CHECK_OK(Verify(plan.evaluation, plan.layout, spec));
  return plan;
}

// From a spec that the rules accept to its program and memory.
void Compile(const v1::JobSpec& job, int64_t budget_bytes_per_rank, Plan* plan) {
  plan->resolved = Resolve(job, budget_bytes_per_rank, &plan->choices);
  plan->spec = ToSpec(plan->resolved);
  plan->model = DescribeSpec(plan->spec);
  plan->layout = MakeLayout(plan->model, LayoutOptionsOf(plan->spec));
  plan->program = CompileProgram(plan->spec, plan->model, plan->layout);
  plan->memory = PlanMemory(plan->spec, plan->model, plan->layout, plan->program);
}

Plan WithoutAdvice(const v1::JobSpec& job, int64_t budget_bytes_per_rank) {
  Plan plan;
  plan.faults = CheckJob(job);
  if (HasErrors(plan.faults)) return plan;
  Compile(job, budget_bytes_per_rank, &plan);
  if (std::optional<Violation> fault = OverBudget(plan.spec, plan.memory); fault.has_value()) {
    plan.faults.push_back(*std::move(fault));
  } else {
    FSDPD_CHECK_OK(Verify(plan.program, plan.layout, plan.spec));
  }
  return plan;
}

}  // namespace

Violation CompilerBug(const v1::JobSpec& job, const absl::Status& why) {
  LogError("compiler bug error=%s spec=%s", why.message(), job.ShortDebugString());
  Violation bug;
  bug.rule = "compiler_bug";
  bug.field = "spec";
  bug.reason = absl::StrCat("cannot be planned because of a fault of fsdpd, not of yours: ", why.message());
  bug.fix = "Report it with the spec. Another strategy, mesh or batch may avoid it.";
  return bug;
}

// Planning is pure, and whoever asks (a coordinator with other people's jobs, above all) outlives our
// mistakes in it.
Plan MakePlan(const v1::JobSpec& job, int64_t budget_bytes_per_rank, const std::vector<std::string>& unread) {
  Plan plan;
  const absl::Status guarded = GuardChecks([&] { plan = MakeUnguarded(job, budget_bytes_per_rank, unread); });
  if (!guarded.ok()) plan.faults = {CompilerBug(job, guarded)};
  return plan;
}

Plan PlanWithoutAdvice(const v1::JobSpec& job, int64_t budget_bytes_per_rank) {
  Plan plan;
  const absl::Status guarded = GuardChecks([&] { plan = WithoutAdvice(job, budget_bytes_per_rank); });
  if (guarded.ok()) return plan;
  plan = {};
  plan.faults = {CompilerBug(job, guarded)};
  return plan;
}

absl::StatusOr<Plan> AcceptedPlan(const v1::JobSpec& job) {
  Plan plan = MakePlan(job, /*budget_bytes_per_rank=*/0);
  if (plan.accepted()) return plan;
  std::vector<std::string> faults;
  for (const Violation& fault : plan.faults) {
    if (fault.level == FaultLevel::kError) faults.push_back(absl::StrCat(fault.field, ": ", fault.reason));
  }
  return absl::InvalidArgumentError(absl::StrJoin(faults, "\n"));
}

v1::Plan ToProto(const Plan& plan) {
  v1::Plan proto;
  *proto.mutable_resolved() = plan.resolved;
  for (const Choice& choice : plan.choices) {
    v1::Plan::Choice* to = proto.add_choices();
    to->set_field(choice.field);
    to->set_value(choice.value);
    to->set_reason(choice.reason);
  }
  for (const Violation& fault : plan.faults) *proto.add_faults() = ToProto(fault);
  if (plan.layout.units.empty()) return proto;
  proto.set_world(plan.spec.mesh.world());
  proto.set_parameters(plan.layout.elements());
  proto.set_padding_ratio(plan.layout.padding_ratio());
  *proto.mutable_memory() = ToProto(plan.memory);
  AddUnits(plan, &proto);
  AddInstructions(plan, &proto);
  proto.set_program_hash(HashText(plan.program));
  *proto.mutable_mesh() = ToProto(plan.spec.mesh);
  proto.set_flops_per_step(StepFlops(plan.spec, plan.model));
  return proto;
}

std::string HashText(const Program& program) { return absl::StrFormat("%016x", program.hash); }

v1::Mesh ToProto(const Mesh& mesh) {
  v1::Mesh proto;
  proto.set_replicate(mesh.size(Axis::kReplicate));
  proto.set_shard(mesh.size(Axis::kShard));
  proto.set_context(mesh.size(Axis::kContext));
  proto.set_tensor(mesh.size(Axis::kTensor));
  return proto;
}

v1::MemoryPlan ToProto(const StepMemory& memory) {
  v1::MemoryPlan proto;
  for (const MemoryComponent& component : memory.components) {
    v1::MemoryPlan::Component* to = proto.add_components();
    to->set_name(component.name);
    to->set_bytes(component.bytes);
    to->set_note(component.note);
  }
  proto.set_peak_bytes(memory.peak_bytes);
  proto.set_host_bytes(memory.host_bytes);
  return proto;
}

v1::Fault ToProto(const Violation& violation) {
  v1::Fault proto;
  proto.set_rule(violation.rule);
  proto.set_severity(ToProto(violation.level));
  proto.set_field(violation.field);
  proto.set_reason(violation.reason);
  proto.set_fix(violation.fix);
  proto.set_before(violation.before);
  proto.set_after(violation.after);
  return proto;
}

}  // namespace fsdpd
