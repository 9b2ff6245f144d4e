#include "fsdp/plan/prediction.h"

#include <google/protobuf/descriptor.h>

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
