#include "fsdp/plan/prediction.h"

#include <gtest/gtest.h>

#include <tuple>

namespace fsdpd {
namespace {

v1::JobSpec TinyJob() {
  v1::JobSpec job;
  job.set_name("tiny");
  job.mutable_model()->set_preset("tiny");
  job.mutable_data()->mutable_synthetic();
  job.mutable_data()->set_sequence_length(64);
  job.mutable_train()->set_steps(10);
  job.mutable_resources()->set_ranks_per_node(4);
  job.mutable_resources()->set_device(v1::DEVICE_CPU);
  return job;
}

TEST(Prediction, MessageHasEveryProfileKey) {
  EXPECT_EQ(v1::DeviceProfile::descriptor()->field_count(), static_cast<int>(ProfileFields().size()) + 1);
  for (const std::string& name : ProfileNames()) {
    const DeviceProfile& profile = *FindProfile(name);
    const DeviceProfile again = FromProto(ToProto(profile));
    EXPECT_EQ(again.name, name);
    for (const ProfileField& field : ProfileFields()) EXPECT_EQ(again.*field.value, profile.*field.value);
  }
}

TEST(Prediction, FillsDefaultsForOlderClientProfile) {
  v1::DeviceProfile older = ToProto(*FindProfile("h200"));
  older.clear_deterministic_forward_slowdown();
  older.clear_deterministic_backward_slowdown();
  older.clear_kernel_seconds();
  older.clear_instruction_seconds();
  const DeviceProfile profile = FromProto(older);
  EXPECT_TRUE(CheckProfile(profile).empty());
  EXPECT_EQ(profile.deterministic_forward_slowdown, 1);
  EXPECT_EQ(profile.kernel_seconds, 0);
}

// Measurements of docs/bench on H200s of one node: Llama-shaped, two or four ranks.
TEST(Prediction, MatchesMeasurements) {
  struct Measured {
    int64_t vocab, hidden, intermediate, layers, heads, kv_heads, sequence, micro_batch, ranks;
    double milliseconds;
  };
  for (const Measured& m : {Measured{1024, 256, 768, 4, 8, 4, 256, 4, 2, 1.32},
                            Measured{128256, 2048, 8192, 16, 32, 8, 2048, 1, 2, 40.8},
                            Measured{128256, 2048, 8192, 16, 32, 8, 2048, 1, 4, 39.5},
                            Measured{128256, 4096, 14336, 32, 32, 8, 8192, 1, 2, 773.0},
                            Measured{128256, 4096, 14336, 32, 32, 8, 8192, 1, 4, 758.7}}) {
    v1::JobSpec job = TinyJob();
    v1::Llama* llama = job.mutable_model()->mutable_llama();
    llama->set_vocab_size(m.vocab);
    llama->set_hidden_size(m.hidden);
    llama->set_intermediate_size(m.intermediate);
    llama->set_layers(m.layers);
    llama->set_heads(m.heads);
    llama->set_kv_heads(m.kv_heads);
    job.mutable_data()->set_sequence_length(m.sequence);
    job.mutable_train()->set_micro_batch(m.micro_batch);
    job.mutable_optimizer()->set_clip_norm(1);
    job.mutable_resources()->set_ranks_per_node(m.ranks);
    job.mutable_resources()->set_device(v1::DEVICE_CUDA);
    const Plan plan = MakePlan(job, 0);
    ASSERT_TRUE(plan.accepted());
    v1::Plan proto = ToProto(plan);
    AddPrediction(plan, *FindProfile("h200"), /*timeline=*/false, &proto);
    const double predicted = proto.prediction().step_seconds() * 1e3;
    EXPECT_NEAR(predicted, m.milliseconds, 0.1 * m.milliseconds) << m.hidden << " on " << m.ranks;
  }
}

const v1::Prediction::GroupTraffic* GroupNamed(const v1::Prediction& prediction, const std::string& name) {
  for (const v1::Prediction::GroupTraffic& group : prediction.groups()) {
    if (group.group() == name) return &group;
  }
  return nullptr;
}

TEST(Prediction, ListsGroupMembers) {
  v1::JobSpec job = TinyJob();
  job.mutable_resources()->set_nodes(4);
  job.mutable_fsdp()->mutable_outer()->set_size(2);
  job.mutable_parallel()->set_tensor(2);
  const Plan plan = MakePlan(job, 0);
  ASSERT_TRUE(plan.accepted());
  v1::Plan proto = ToProto(plan);
  AddPrediction(plan, *FindProfile("cpu"), /*timeline=*/false, &proto);
  EXPECT_EQ(proto.mesh().replicate(), 2);
  EXPECT_EQ(proto.mesh().shard(), 4);
  EXPECT_EQ(proto.mesh().tensor(), 2);
  const auto* shard = GroupNamed(proto.prediction(), "shard");
  ASSERT_NE(shard, nullptr);
  EXPECT_EQ(shard->members(), "0,2..6");
  EXPECT_EQ(shard->ranks(), 4);
  EXPECT_EQ(shard->groups(), 4);
  EXPECT_EQ(shard->nodes(), 2);
  EXPECT_GT(shard->bytes(), 0);
  const auto* replicate = GroupNamed(proto.prediction(), "replicate");
  ASSERT_NE(replicate, nullptr);
  EXPECT_EQ(replicate->members(), "0,8");
  const auto* tensor = GroupNamed(proto.prediction(), "tensor");
  ASSERT_NE(tensor, nullptr);
  EXPECT_EQ(tensor->members(), "0-1");
  EXPECT_EQ(tensor->nodes(), 1);
  EXPECT_EQ(tensor->axes_size(), 1);
  EXPECT_GT(tensor->exposed_seconds(), 0);
  EXPECT_NE(GroupNamed(proto.prediction(), "world"), nullptr) << "the norm is of all ranks";
  EXPECT_EQ(GroupNamed(proto.prediction(), "context"), nullptr);
}

TEST(Prediction, ExposedTimesSumToTotal) {
  v1::JobSpec experts = TinyJob();
  experts.mutable_model()->set_preset("deepseek-v3");
  experts.mutable_data()->set_sequence_length(4096);
  experts.mutable_resources()->set_device(v1::DEVICE_CUDA);
  experts.mutable_resources()->set_nodes(16);
  experts.mutable_resources()->set_ranks_per_node(8);
  experts.mutable_parallel()->set_expert(8);
  experts.mutable_parallel()->set_context(2);
  v1::JobSpec matrices = TinyJob(), stages = TinyJob();
  matrices.mutable_parallel()->set_tensor(2);
  stages.mutable_parallel()->set_pipeline(4);
  for (const auto& [job, exchanging, is_large] :
       {std::tuple(experts, 2, true), std::tuple(matrices, 1, true), std::tuple(stages, 0, false)}) {
    const Plan plan = MakePlan(job, 0);
    ASSERT_TRUE(plan.accepted());
    v1::Plan proto = ToProto(plan);
    AddPrediction(plan, *FindProfile("h200"), /*timeline=*/false, &proto);
    const v1::Prediction& prediction = proto.prediction();
    ASSERT_EQ(prediction.exchanges_size(), exchanging);
    double of_ops = 0, of_groups = 0;
    for (const v1::OpTime& op : prediction.ops()) of_ops += op.exposed_seconds();
    for (const v1::Prediction::Exchange& exchange : prediction.exchanges()) of_ops += exchange.seconds();
    for (const auto& group : prediction.groups()) of_groups += group.exposed_seconds();
    const double exposed = ExposedSeconds(prediction), slack = 1e-9 * prediction.step_seconds();
    EXPECT_NEAR(of_ops, exposed, slack);
    EXPECT_NEAR(of_groups, exposed, slack);
    if (is_large) EXPECT_GT(exposed, 0.05 * prediction.step_seconds());
    EXPECT_EQ(GroupNamed(prediction, "pipeline") != nullptr, exchanging == 0);
  }
}

TEST(Prediction, BubbleShrinksWithMicroBatches) {
  double bubble = 1;
  for (const int64_t micro_batches : {1, 4, 16}) {
    v1::JobSpec job = TinyJob();
    job.mutable_parallel()->set_pipeline(4);
    job.mutable_train()->set_global_batch(micro_batches);
    const Plan plan = MakePlan(job, 0);
    ASSERT_TRUE(plan.accepted());
    v1::Plan proto = ToProto(plan);
    AddPrediction(plan, *FindProfile("cpu"), /*timeline=*/true, &proto);
    const v1::Prediction& prediction = proto.prediction();
    const double ratio = prediction.bubble_seconds() / prediction.step_seconds();
    EXPECT_GT(ratio, 0);
    EXPECT_LT(ratio, bubble);
    bubble = ratio;
    double idle = 0;
    for (const v1::Plan::Stage& stage : proto.stages()) idle += stage.idle_ratio() / proto.stages_size();
    EXPECT_NEAR(idle, ratio, 1e-9);
    EXPECT_NE(GroupNamed(prediction, "pipeline"), nullptr);
    EXPECT_EQ(prediction.timeline().spans_size(), proto.instructions_size());
  }
}

TEST(Prediction, CountsEachCommunicationOnce) {
  const Plan plan = MakePlan(TinyJob(), 0);
  ASSERT_TRUE(plan.accepted());
  v1::Plan proto = ToProto(plan);
  AddPrediction(plan, *FindProfile("cpu"), /*timeline=*/false, &proto);
  const v1::Prediction& prediction = proto.prediction();
  EXPECT_EQ(prediction.profile().name(), "cpu");
  EXPECT_GT(prediction.step_seconds(), prediction.compute_seconds());
  EXPECT_GT(prediction.tokens_per_second(), 0);
  ASSERT_EQ(prediction.ops_size(), 3);
  EXPECT_EQ(prediction.ops(0).op(), v1::COMM_OP_ALL_GATHER);
  EXPECT_EQ(prediction.ops(1).op(), v1::COMM_OP_REDUCE_SCATTER);
  EXPECT_EQ(prediction.ops(1).count(), 6);
  EXPECT_EQ(prediction.ops(2).op(), v1::COMM_OP_ALL_REDUCE) << "the norm's sums, as ranks count them";
  EXPECT_EQ(prediction.ops(2).count(), 1);
  EXPECT_FALSE(prediction.has_timeline());
}

TEST(Prediction, ReportsSnapshotTime) {
  for (const bool saves : {false, true}) {
    v1::JobSpec job = TinyJob();
    if (saves) job.mutable_checkpoint()->set_dir("/runs/1");
    const Plan plan = MakePlan(job, 0);
    ASSERT_TRUE(plan.accepted());
    v1::Plan proto = ToProto(plan);
    AddPrediction(plan, *FindProfile("cpu"), /*timeline=*/true, &proto);
    EXPECT_EQ(proto.prediction().snapshot_seconds() > 0, saves);
    EXPECT_EQ(proto.memory().host_bytes() > 0, saves);
    EXPECT_EQ(proto.prediction().timeline().spans_size(), proto.instructions_size());
  }
}

TEST(Prediction, TimelineHasOneSpanPerInstruction) {
  const Plan plan = MakePlan(TinyJob(), 0);
  v1::Plan proto = ToProto(plan);
  AddPrediction(plan, *FindProfile("cpu"), /*timeline=*/true, &proto);
  const v1::Prediction::Timeline& timeline = proto.prediction().timeline();
  EXPECT_EQ(timeline.spans_size(), proto.instructions_size());
  EXPECT_GT(timeline.memory_size(), 10);
  for (const auto& sample : timeline.memory()) EXPECT_EQ(sample.bytes_size(), timeline.components_size());
}

}  // namespace
}  // namespace fsdpd
