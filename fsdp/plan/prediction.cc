#include "fsdp/plan/prediction.h"

#include <absl/strings/str_cat.h>
#include <google/protobuf/descriptor.h>

#include <algorithm>
#include <map>
#include <utility>

#include "base/check.h"
#include "fsdp/plan/predict/simulate.h"
#include "fsdp/plan/predict/stage_times.h"

namespace fsdpd {
namespace {

void AddTimeline(const Simulation& simulation, v1::Prediction::Timeline* timeline) {
  for (const SimulatedSpan& span : simulation.spans) {
    v1::Prediction::Span* to = timeline->add_spans();
    to->set_start_seconds(span.start);
    to->set_seconds(span.seconds);
  }
  for (const std::string& name : SimulatedComponents()) timeline->add_components(name);
  for (const MemorySample& sample : simulation.memory) {
    v1::Prediction::MemorySample* to = timeline->add_memory();
    to->set_start_seconds(sample.start);
    for (const int64_t bytes : sample.bytes) to->add_bytes(bytes);
  }
}

// Ranks of a group as text: "0-7", "0,8", "0,8..504". Members are equally spaced.
std::string MembersText(const std::vector<int64_t>& members) {
  if (members.size() == 1) return absl::StrCat(members.front());
  const int64_t distance = members[1] - members[0];
  if (distance == 1) return absl::StrCat(members.front(), "-", members.back());
  const std::string two = absl::StrCat(members[0], ",", members[1]);
  return members.size() == 2 ? two : absl::StrCat(two, "..", members.back());
}

// Maximum number of nodes that a group of this kind spans. Ranks are assigned to nodes in order.
int64_t NodesOf(const Mesh& mesh, Group group, int64_t ranks_per_node) {
  const int64_t groups = mesh.world() / mesh.SizeOf(group);
  std::vector<int64_t> nodes(groups, 0), last(groups, -1);
  for (int64_t rank = 0; rank < mesh.world(); ++rank) {
    const int64_t number = mesh.NumberOf(group, rank), node = rank / ranks_per_node;
    if (last[number] == node) continue;
    last[number] = node;
    ++nodes[number];
  }
  return *std::max_element(nodes.begin(), nodes.end());
}

void AddGroup(const Mesh& mesh, int64_t ranks_per_node, const SimulatedGroup& group,
              v1::Prediction::GroupTraffic* to) {
  to->set_group(NameOf(group.group));
  for (int a = 0; a < kAxes; ++a) {
    const auto axis = static_cast<Axis>(a);
    if (mesh.size(axis) > 1 && Has(group.group, axis)) to->add_axes(NameOf(axis));
  }
  to->set_ranks(mesh.SizeOf(group.group));
  to->set_groups(mesh.world() / mesh.SizeOf(group.group));
  to->set_nodes(NodesOf(mesh, group.group, ranks_per_node));
  std::vector<int64_t> members;
  for (int64_t rank = 0; rank < mesh.world(); ++rank) {
    if (mesh.NumberOf(group.group, rank) == mesh.NumberOf(group.group, 0)) members.push_back(rank);
  }
  to->set_members(MembersText(members));
  to->set_count(group.count);
  to->set_bytes(group.bytes);
  to->set_seconds(group.seconds);
  to->set_exposed_seconds(group.exposed_seconds);
}

struct SimulatedStages {
  std::vector<LaneTimes> times;
  StageBusy busy;
};

// The number of steps that Simulate() needs.
constexpr int kSteps = 3;

SimulatedStages RunStages(const Plan& plan, const DeviceProfile& profile, Placement placement) {
  std::vector<TimedStage> timed;
  for (const StagePlan& stage : *plan.stages) {
    timed.push_back(
        {&stage.program, stage.layout.stage,
         InstructionSeconds(plan.spec, stage.model, stage.layout, stage.program, profile, placement)});
  }
  SimulatedStages stages;
  stages.times = RunStages(timed, kSteps);
  stages.busy = BusyOf(timed, stages.times);
  return stages;
}

// Step time and throughput are those of all stages together.
void AddStages(const Plan& plan, const SimulatedStages& stages, const DeviceProfile& profile,
               v1::Plan* proto) {
  const StageBusy& busy = stages.busy;
  v1::Prediction* prediction = proto->mutable_prediction();
  double flops = 0, idle = 0;
  for (size_t s = 0; s < plan.stages->size(); ++s) {
    const double seconds = busy.step_seconds - busy.compute_seconds[s];
    flops += StepFlops(plan.spec, (*plan.stages)[s].model);
    idle += seconds / static_cast<double>(plan.stages->size());
    if (proto->stages_size() > static_cast<int>(s))
      proto->mutable_stages(static_cast<int>(s))->set_idle_ratio(seconds / busy.step_seconds);
  }
  prediction->set_bubble_seconds(idle);
  prediction->set_step_seconds(busy.step_seconds);
  prediction->set_tokens_per_second(static_cast<double>(plan.spec.tokens_per_step()) / busy.step_seconds);
  prediction->set_mfu(flops / (busy.step_seconds * static_cast<double>(plan.spec.mesh.world()) *
                               profile.peak_flops(plan.spec.precision.compute)));
}

// Field names of the message equal the table's keys; a test checks this.
const google::protobuf::FieldDescriptor* FieldOf(const ProfileField& field) {
  const auto* descriptor = v1::DeviceProfile::descriptor()->FindFieldByName(field.key);
  FSDPD_CHECK(descriptor != nullptr);
  return descriptor;
}

}  // namespace

void AddPrediction(const Plan& plan, const DeviceProfile& profile, bool timeline, v1::Plan* proto) {
  FSDPD_CHECK(!plan.program.instructions.empty());
  const Placement placement{plan.resolved.resources().ranks_per_node()};
  const SimulatedStages stages =
      plan.stages == nullptr ? SimulatedStages() : RunStages(plan, profile, placement);
  const Simulation simulation =
      Simulate(plan.spec, plan.model, plan.layout, plan.program, profile, placement,
               plan.stages == nullptr ? nullptr : &stages.times[plan.layout.stage.number]);
  v1::Prediction* prediction = proto->mutable_prediction();
  *prediction->mutable_profile() = ToProto(profile);
  prediction->set_step_seconds(simulation.step_seconds);
  prediction->set_compute_seconds(simulation.compute_seconds);
  prediction->set_exposed_seconds(simulation.exposed_seconds);
  prediction->set_tokens_per_second(simulation.tokens_per_second);
  prediction->set_mfu(simulation.mfu);
  if (plan.stages != nullptr) AddStages(plan, stages, profile, proto);
  prediction->set_snapshot_seconds(simulation.snapshot_seconds);
  prediction->set_snapshot_stall_seconds(simulation.snapshot_stall_seconds);
  prediction->set_offload_seconds(simulation.offload_seconds);
  prediction->set_offload_stall_seconds(simulation.offload_stall_seconds);
  std::map<v1::CommOp, v1::OpTime> ops;
  for (const SimulatedOp& op : simulation.ops) {
    if (op.counted_as == v1::COMM_OP_UNSPECIFIED) continue;
    v1::OpTime& to = ops[op.counted_as];  // Several operations can map to one CommOp.
    to.set_op(op.counted_as);
    to.set_seconds(to.seconds() + op.seconds);
    to.set_exposed_seconds(to.exposed_seconds() + op.exposed_seconds);
    to.set_bytes(to.bytes() + op.bytes);
    to.set_count(to.count() + op.count);
  }
  for (const auto& entry : ops) *prediction->add_ops() = entry.second;
  for (const SimulatedGroup& group : simulation.groups) {
    AddGroup(plan.spec.mesh, plan.resolved.resources().ranks_per_node(), group, prediction->add_groups());
  }
  for (const SimulatedGroup& exchange : simulation.exchanges) {
    v1::Prediction::Exchange* to = prediction->add_exchanges();
    to->set_group(NameOf(exchange.group));
    to->set_count(exchange.count);
    to->set_bytes(exchange.bytes);
    to->set_seconds(exchange.seconds);
  }
  prediction->set_exchanged_seconds(simulation.exchanged_seconds);
  if (timeline) AddTimeline(simulation, prediction->mutable_timeline());
}

double ExposedSeconds(const v1::Prediction& prediction) {
  return prediction.exposed_seconds() + prediction.exchanged_seconds();
}

v1::DeviceProfile ToProto(const DeviceProfile& profile) {
  v1::DeviceProfile proto;
  proto.set_name(profile.name);
  for (const ProfileField& field : ProfileFields()) {
    proto.GetReflection()->SetDouble(&proto, FieldOf(field), profile.*field.value);
  }
  return proto;
}

DeviceProfile FromProto(const v1::DeviceProfile& proto) {
  DeviceProfile profile;
  profile.name = proto.name();
  for (const ProfileField& field : ProfileFields()) {
    profile.*field.value = proto.GetReflection()->GetDouble(proto, FieldOf(field));
  }
  // Unset in profiles of older clients.
  for (double DeviceProfile::*slowdown :
       {&DeviceProfile::deterministic_forward_slowdown, &DeviceProfile::deterministic_backward_slowdown}) {
    if (profile.*slowdown == 0) profile.*slowdown = 1;
  }
  return profile;
}

}  // namespace fsdpd
