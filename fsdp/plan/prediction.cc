#include "fsdp/plan/prediction.h"

#include <absl/strings/str_cat.h>
#include <google/protobuf/descriptor.h>

#include <algorithm>
#include <map>

#include "base/check.h"
#include "fsdp/plan/predict/simulate.h"

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

// "0-7", "0,8", "0,8..504": members lie at equal distances.
std::string MembersText(const std::vector<int64_t>& members) {
  if (members.size() == 1) return absl::StrCat(members.front());
  const int64_t distance = members[1] - members[0];
  if (distance == 1) return absl::StrCat(members.front(), "-", members.back());
  const std::string two = absl::StrCat(members[0], ",", members[1]);
  return members.size() == 2 ? two : absl::StrCat(two, "..", members.back());
}

// The most nodes that one of the groups spans. Ranks are on nodes in order of their numbers.
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

// The message has the table's keys as names: its test says so.
const google::protobuf::FieldDescriptor* FieldOf(const ProfileField& field) {
  const auto* descriptor = v1::DeviceProfile::descriptor()->FindFieldByName(field.key);
  FSDPD_CHECK(descriptor != nullptr);
  return descriptor;
}

}  // namespace

void AddPrediction(const Plan& plan, const DeviceProfile& profile, bool timeline, v1::Plan* proto) {
  FSDPD_CHECK(!plan.program.instructions.empty());
  const Simulation simulation = Simulate(plan.spec, plan.model, plan.layout, plan.program, profile,
                                         {plan.resolved.resources().ranks_per_node()});
  v1::Prediction* prediction = proto->mutable_prediction();
  *prediction->mutable_profile() = ToProto(profile);
  prediction->set_step_seconds(simulation.step_seconds);
  prediction->set_compute_seconds(simulation.compute_seconds);
  prediction->set_exposed_seconds(simulation.exposed_seconds);
  prediction->set_tokens_per_second(simulation.tokens_per_second);
  prediction->set_mfu(simulation.mfu);
  prediction->set_snapshot_seconds(simulation.snapshot_seconds);
  prediction->set_snapshot_stall_seconds(simulation.snapshot_stall_seconds);
  std::map<v1::CommOp, v1::OpTime> ops;
  for (const SimulatedOp& op : simulation.ops) {
    if (op.counted_as == v1::COMM_OP_UNSPECIFIED) continue;
    v1::OpTime& to = ops[op.counted_as];  // Two operations may count as one.
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
  prediction->set_exchanged_seconds(simulation.exchanged_seconds);
  if (timeline) AddTimeline(simulation, prediction->mutable_timeline());
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
  return profile;
}

}  // namespace fsdpd
