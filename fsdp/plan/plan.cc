#include "fsdp/plan/plan.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/check_guard.h"
#include "base/log.h"
#include "base/text.h"
#include "fsdp/plan/budget.h"
#include "fsdp/plan/memory/host_memory.h"
#include "fsdp/plan/model/activation_policy.h"
#include "fsdp/plan/model/describe_model.h"
#include "fsdp/plan/model/stage_partition.h"
#include "fsdp/plan/predict/cost.h"
#include "fsdp/plan/program/traffic.h"
#include "fsdp/plan/rules/rules.h"
#include "fsdp/plan/rules/sized_job.h"
#include "fsdp/plan/verify/verify_stages.h"

namespace fsdpd {
namespace {

v1::Severity ToProto(ViolationLevel level) {
  switch (level) {
    case ViolationLevel::kError:
      return v1::SEVERITY_ERROR;
    case ViolationLevel::kAdjust:
      return v1::SEVERITY_ADJUST;
    case ViolationLevel::kWarn:
      return v1::SEVERITY_WARN;
  }
  return v1::SEVERITY_UNSPECIFIED;
}

// Tied-embedding replicas are counted only in the stage that saves them.
int64_t ParametersOf(const Bucket& bucket) {
  return bucket.tied_replica == TiedReplica::kCopy ? 0 : bucket.elements * bucket.slices;
}

void AddUnits(const Plan& plan, const StagePlan& from, int begin, int end, v1::Plan* proto) {
  for (int u = begin; u < end; ++u) {
    const UnitLayout& layout = from.layout.units[u];
    v1::Plan::Unit* unit = proto->add_units();
    unit->set_name(layout.name);
    for (const int b : layout.buckets) {
      const Bucket& bucket = from.layout.buckets[b];
      unit->set_parameters(unit->parameters() + ParametersOf(bucket));
      unit->set_gathered_bytes(unit->gathered_bytes() + bucket.gather_buffer_bytes());
      unit->set_shard_bytes(unit->shard_bytes() + bucket.main_bytes());
    }
    for (const UnitExchange& exchange : from.model.units[u].exchanges) {
      unit->set_exchanged_bytes(unit->exchanged_bytes() +
                                ReceivedBytes(plan.spec.mesh, exchange, exchange.forward_elements) +
                                ReceivedBytes(plan.spec.mesh, exchange, exchange.backward_elements));
    }
    unit->set_activation_bytes(SavedBytesOf(plan.spec, from.model, u));
  }
}

// In model order.
void AddUnitsOfStages(const Plan& plan, v1::Plan* proto) {
  for (size_t r = 0; r < plan.layout.stage.runs.size(); ++r) {
    for (const StagePlan& stage : *plan.stages) {
      const UnitRun& run = stage.layout.stage.runs[r];
      AddUnits(plan, stage, run.begin, run.end, proto);
    }
  }
}

double WorkOf(const StagePlan& stage) {
  double work = 0;
  for (const UnitFacts& unit : stage.model.units) work += WorkOf(unit);
  return work;
}

void AddStages(const Plan& plan, v1::Plan* proto) {
  double all = 0;
  for (const StagePlan& stage : *plan.stages) all += WorkOf(stage);
  for (const StagePlan& stage : *plan.stages) {
    v1::Plan::Stage* to = proto->add_stages();
    to->set_first_unit(stage.layout.units.front().name);
    to->set_last_unit(stage.layout.units.back().name);
    to->set_units(static_cast<int>(stage.layout.units.size()));
    for (const UnitRun& run : stage.layout.stage.runs) {
      v1::Plan::Stage::Chunk* chunk = to->add_chunks();
      chunk->set_first_unit(stage.layout.units[run.begin].name);
      chunk->set_last_unit(stage.layout.units[run.end - 1].name);
    }
    for (const Bucket& bucket : stage.layout.buckets)
      to->set_parameters(to->parameters() + ParametersOf(bucket));
    to->set_peak_bytes(stage.memory.peak_bytes);
    to->set_work_ratio(WorkOf(stage) * static_cast<double>(plan.stages->size()) / all);
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
                   const std::vector<std::string>& unparsed);
void Compile(const v1::JobSpec& job, int64_t budget_bytes_per_rank, bool evaluation, Plan* plan);
absl::Status VerifyAll(const Plan& plan, bool evaluation);

// A warning, not an error: the job is placed on any node where its plan fits, whatever its budget.
void WarnOfLargeBudget(const v1::JobSpec& job, int64_t offered_bytes, Violations* violations) {
  const int64_t budget = job.resources().memory_budget_bytes();
  if (offered_bytes <= 0 || budget <= offered_bytes) return;
  violations->push_back(
      {"budget_above_offer", ViolationLevel::kWarn, "resources.memory_budget_bytes",
       absl::StrCat("the budget is ", HumanBytes(budget), " and nodes offer ", HumanBytes(offered_bytes),
                    " per rank; a step that needs more cannot run on these nodes"),
       "leave it out to use the memory that nodes offer", "", ""});
}

// Reports a memory violation of a spec that is rejected for other reasons, so that the user sees both.
Violations MemoryFaultsBeside(const v1::JobSpec& job, int64_t budget_bytes_per_rank, const Violations& found,
                              std::vector<std::string> faulty_fields) {
  for (const Violation& fault : found) {
    if (fault.level == ViolationLevel::kError) faulty_fields.push_back(fault.field);
  }
  const std::optional<v1::JobSpec> sized = SizedJob(job, faulty_fields);
  if (!sized.has_value() || HasErrors(CheckJob(*sized))) return {};
  Violations of_memory = MakeUnguarded(*sized, budget_bytes_per_rank, {}).violations;
  of_memory.erase(
      std::remove_if(of_memory.begin(), of_memory.end(),
                     [](const Violation& fault) { return fault.level != ViolationLevel::kError; }),
      of_memory.end());
  return of_memory;
}

Plan MakeUnguarded(const v1::JobSpec& job, int64_t budget_bytes_per_rank,
                   const std::vector<std::string>& unparsed) {
  Plan plan;
  plan.violations = CheckJob(job, unparsed);
  if (HasErrors(plan.violations) || !unparsed.empty()) {
    for (Violation& fault : MemoryFaultsBeside(job, budget_bytes_per_rank, plan.violations, unparsed)) {
      plan.violations.push_back(std::move(fault));
    }
    return plan;
  }
  Compile(job, budget_bytes_per_rank, /*evaluation=*/true, &plan);
  const Spec& spec = plan.spec;
  WarnOfLargeBudget(job, budget_bytes_per_rank, &plan.violations);
  for (Violation& fault : CheckBudget(job, spec, plan.memory)) plan.violations.push_back(std::move(fault));
  // An over-budget plan is not verified: its program is shown but never run, and rule 7 of the verifier would
  // report it as a compiler bug.
  if (!plan.accepted()) return plan;
  FSDPD_CHECK_OK(VerifyAll(plan, /*evaluation=*/true));
  return plan;
}

// Compiles an accepted spec into program and memory plan.
void Compile(const v1::JobSpec& job, int64_t budget_bytes_per_rank, bool evaluation, Plan* plan) {
  plan->resolved = Resolve(job, budget_bytes_per_rank, &plan->choices);
  plan->spec = ToSpec(plan->resolved);
  const Spec& spec = plan->spec;
  std::vector<StagePlan> stages;
  int64_t host_bytes = 0;
  for (const ModelFacts& model : StagesOf(spec)) {
    StagePlan& stage = stages.emplace_back();
    stage.model = model;
    stage.layout = MakeLayout(model, LayoutOptionsOf(spec));
    stage.program = CompileProgram(spec, model, stage.layout);
    if (evaluation) stage.evaluation = CompileEvaluation(spec, model, stage.layout, stage.program);
    stage.memory = PlanMemory(spec, model, stage.layout, stage.program);
    host_bytes = std::max(host_bytes, stage.memory.host_bytes);
  }
  const auto needs_less = [](const StagePlan& a, const StagePlan& b) {
    return a.memory.peak_bytes < b.memory.peak_bytes;
  };
  auto most = std::max_element(stages.begin(), stages.end(), needs_less);
  if (stages.size() == 1) {
    static_cast<StagePlan&>(*plan) = std::move(*most);
  } else {
    static_cast<StagePlan&>(*plan) = *most;
    plan->memory.host_bytes = host_bytes;
    plan->all_units = std::make_shared<const Layout>(MakeLayout(DescribeSpec(spec), LayoutOptionsOf(spec)));
    plan->stages = std::make_shared<const std::vector<StagePlan>>(std::move(stages));
  }
  plan->program_hash = HashOf(FingerprintOf(*plan));
}

absl::Status VerifyStages(const Plan& plan, Program StagePlan::*program) {
  std::vector<StageProgram> programs;
  for (const StagePlan& stage : *plan.stages) {
    FSDPD_RETURN_IF_ERROR(Verify(stage.*program, stage.layout, plan.spec));
    programs.push_back({&(stage.*program), &stage.layout});
  }
  return VerifyStages(programs, plan.spec.device == DeviceKind::kCuda);
}

absl::Status VerifyAll(const Plan& plan, bool evaluation) {
  for (Program StagePlan::*program : {&StagePlan::program, &StagePlan::evaluation}) {
    if (program == &StagePlan::evaluation && !evaluation) continue;
    FSDPD_RETURN_IF_ERROR(plan.stages != nullptr ? VerifyStages(plan, program)
                                                 : Verify(plan.*program, plan.layout, plan.spec));
  }
  return absl::OkStatus();
}

Plan WithoutAdvice(const v1::JobSpec& job, int64_t budget_bytes_per_rank) {
  Plan plan;
  plan.violations = CheckJob(job);
  if (HasErrors(plan.violations)) return plan;
  Compile(job, budget_bytes_per_rank, /*evaluation=*/false, &plan);
  if (std::optional<Violation> fault = OverBudget(plan.spec, plan.memory); fault.has_value()) {
    plan.violations.push_back(*std::move(fault));
  } else {
    FSDPD_CHECK_OK(VerifyAll(plan, /*evaluation=*/false));
  }
  return plan;
}

}  // namespace

Violation CompilerBug(const v1::JobSpec& job, const absl::Status& why) {
  LogError("compiler bug error=%s spec=%s", why.message(), job.ShortDebugString());
  Violation bug;
  bug.rule = "compiler_bug";
  bug.field = "spec";
  bug.reason = absl::StrCat("internal error of fsdpd while planning: ", why.message());
  bug.fix = "report it with the spec; another strategy, mesh or batch size may avoid it";
  return bug;
}

// Planning is pure, so a failed check is contained here: the process that called (in particular a coordinator
// with other users' jobs) survives a planner bug.
Plan MakePlan(const v1::JobSpec& job, int64_t budget_bytes_per_rank,
              const std::vector<std::string>& unparsed) {
  Plan plan;
  const absl::Status guarded =
      GuardChecks([&] { plan = MakeUnguarded(job, budget_bytes_per_rank, unparsed); });
  if (!guarded.ok()) plan.violations = {CompilerBug(job, guarded)};
  return plan;
}

Plan PlanWithoutAdvice(const v1::JobSpec& job, int64_t budget_bytes_per_rank) {
  Plan plan;
  const absl::Status guarded = GuardChecks([&] { plan = WithoutAdvice(job, budget_bytes_per_rank); });
  if (guarded.ok()) return plan;
  plan = {};
  plan.violations = {CompilerBug(job, guarded)};
  return plan;
}

absl::StatusOr<Plan> AcceptedPlan(const v1::JobSpec& job) {
  Plan plan = MakePlan(job, /*budget_bytes_per_rank=*/0);
  if (plan.accepted()) return plan;
  std::vector<std::string> violations;
  for (const Violation& fault : plan.violations) {
    if (fault.level == ViolationLevel::kError)
      violations.push_back(absl::StrCat(fault.field, ": ", fault.reason));
  }
  return absl::InvalidArgumentError(absl::StrJoin(violations, "\n"));
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
  for (const Violation& fault : plan.violations) *proto.add_violations() = ToProto(fault);
  if (plan.layout.units.empty()) return proto;
  proto.set_world_size(plan.spec.mesh.world());
  proto.set_parameters(plan.full_layout().elements());
  for (const Bucket& bucket : plan.full_layout().buckets) {
    if (bucket.trainable) proto.set_trainable_parameters(proto.trainable_parameters() + ParametersOf(bucket));
  }
  proto.set_padding_ratio(plan.full_layout().padding_ratio());
  *proto.mutable_memory() = ToProto(plan.memory);
  if (plan.stages == nullptr) AddUnits(plan, plan, 0, static_cast<int>(plan.layout.units.size()), &proto);
  if (plan.stages != nullptr) AddUnitsOfStages(plan, &proto);
  if (plan.stages != nullptr) AddStages(plan, &proto);
  AddInstructions(plan, &proto);
  proto.set_program_hash(plan.program_hash);
  *proto.mutable_mesh() = ToProto(plan.spec.mesh);
  proto.set_flops_per_step(0);
  if (plan.stages == nullptr) proto.set_flops_per_step(StepFlops(plan.spec, plan.model));
  for (size_t s = 0; plan.stages != nullptr && s < plan.stages->size(); ++s)
    proto.set_flops_per_step(proto.flops_per_step() + StepFlops(plan.spec, (*plan.stages)[s].model));
  return proto;
}

const StagePlan& Plan::StageOf(int64_t rank) const {
  return stages == nullptr ? *this : (*stages)[spec.mesh.IndexAlong(Axis::kPipeline, rank)];
}

int64_t HostBytesOfNode(const Plan& plan) {
  if (plan.memory.host_bytes == 0) return 0;
  const int64_t ranks = plan.resolved.resources().ranks_per_node();
  int64_t most = 0;
  for (int64_t first = 0; first < plan.spec.mesh.world(); first += ranks) {
    int64_t bytes = 0;
    for (int64_t rank = first; rank < first + ranks; ++rank) {
      const StagePlan& stage = plan.StageOf(rank);
      bytes += stage.memory.offloaded_bytes + SnapshotBytes(plan.spec, stage.layout, {plan.spec.mesh, rank});
    }
    most = std::max(most, bytes);
  }
  return most;
}

Plan PlanOfRank(const Plan& plan, int64_t rank) {
  Plan own = plan;
  if (plan.stages != nullptr) static_cast<StagePlan&>(own) = plan.StageOf(rank);
  return own;
}

std::vector<std::vector<int64_t>> FirstElements(const Plan& plan, int64_t rank) {
  const Layout &whole = plan.full_layout(), &own = plan.StageOf(rank).layout;
  std::map<std::string, int64_t> begins;  // Key: full name.
  int64_t next = 0;
  for (const UnitLayout& unit : whole.units) {
    for (const ParamPlace& place : unit.params) {
      const ParamSlot& slot = whole.buckets[place.bucket].params[place.slot];
      begins[FullName(unit, slot)] = next;
      next += slot.full_elements();
    }
  }
  std::vector<std::vector<int64_t>> first(own.units.size());
  for (size_t u = 0; u < own.units.size(); ++u) {
    for (const ParamPlace& place : own.units[u].params) {
      const ParamSlot& slot = own.buckets[place.bucket].params[place.slot];
      first[u].push_back(begins.at(FullName(own.units[u], slot)));
    }
  }
  return first;
}

std::vector<std::string> FingerprintOf(const Plan& plan) {
  if (plan.stages == nullptr) return Fingerprint(plan.spec, plan.layout, plan.program);
  std::vector<std::string> lines;
  for (const StagePlan& stage : *plan.stages) {
    for (std::string& line : Fingerprint(plan.spec, stage.layout, stage.program))
      lines.push_back(std::move(line));
  }
  return lines;
}

v1::Mesh ToProto(const Mesh& mesh) {
  v1::Mesh proto;
  proto.set_replicate(mesh.size(Axis::kReplicate));
  proto.set_shard(mesh.size(Axis::kShard));
  proto.set_context(mesh.size(Axis::kContext));
  proto.set_tensor(mesh.size(Axis::kTensor));
  proto.set_pipeline(mesh.size(Axis::kPipeline));
  proto.set_expert(mesh.size(Axis::kExpert));
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

v1::Violation ToProto(const Violation& violation) {
  v1::Violation proto;
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
