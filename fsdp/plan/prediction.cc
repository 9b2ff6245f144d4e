#include "fsdp/plan/prediction.h"

#include <google/protobuf/descriptor.h>

#include "base/check.h"
#include "fsdp/plan/predict/simulate.h"

namespace fsdpd {
namespace {

v1::CommOp CommOpOf(Op op, const Spec& spec) {
  switch (op) {
    case Op::kGather:
      return spec.strategy == Strategy::kNoShard ? v1::COMM_OP_UNSPECIFIED : v1::COMM_OP_ALL_GATHER;
    case Op::kReduce:
      return spec.strategy == Strategy::kNoShard ? v1::COMM_OP_ALL_REDUCE : v1::COMM_OP_REDUCE_SCATTER;
    case Op::kReduceOuter:
      return v1::COMM_OP_OUTER_REDUCE;
    case Op::kPublish:
      return v1::COMM_OP_OUTER_GATHER;
    default:
      return v1::COMM_OP_UNSPECIFIED;
  }
}

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
  for (const SimulatedOp& op : simulation.ops) {
    const v1::CommOp kind = CommOpOf(op.op, plan.spec);
    if (kind == v1::COMM_OP_UNSPECIFIED) continue;
    v1::OpTime* to = prediction->add_ops();
    to->set_op(kind);
    to->set_seconds(op.seconds);
    to->set_exposed_seconds(op.exposed_seconds);
    to->set_bytes(op.bytes);
    to->set_count(op.count);
  }
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
