#include "fsdp/plan/resolve.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "fsdp/plan/spec.h"

namespace fsdpd {
namespace {

// The least that a job must say.
v1::JobSpec LeastJob() {
  v1::JobSpec job;
  job.set_name("least");
  job.mutable_model()->set_preset("tiny");
  job.mutable_data()->mutable_synthetic();
  job.mutable_data()->set_sequence_length(64);
  job.mutable_train()->set_steps(10);
  return job;
}

std::string ValueOf(const std::vector<Choice>& choices, const std::string& field) {
  for (const Choice& choice : choices) {
    if (choice.field == field) return choice.value;
  }
  return "(not chosen)";
}

TEST(Resolve, FillsEveryDefault) {
  std::vector<Choice> choices;
  const Spec spec = ToSpec(Resolve(LeastJob(), 0, &choices));
  EXPECT_EQ(spec.world, 1);
  EXPECT_EQ(spec.device, DeviceKind::kCuda);
  EXPECT_EQ(spec.compute, DType::kBf16);
  EXPECT_EQ(spec.micro_batch, 1);
  EXPECT_EQ(spec.global_batch, 1);
  EXPECT_EQ(spec.seed, 1u);
  EXPECT_EQ(spec.adamw.lr, 3e-4);
  EXPECT_EQ(spec.adamw.beta2, 0.95);
  EXPECT_EQ(spec.adamw.weight_decay, 0.1);
  EXPECT_EQ(spec.clip_norm, 0);
  EXPECT_EQ(spec.schedule.shape, ScheduleShape::kConstant);
  EXPECT_EQ(spec.strategy, Strategy::kOptimGradsParams);
  EXPECT_EQ(spec.recompute, Recompute::kNone);
  EXPECT_EQ(spec.data.synthetic_vocab, 256);
  EXPECT_EQ(spec.memory_budget_bytes, 0);
  EXPECT_EQ(ValueOf(choices, "precision.compute"), "bf16");
  EXPECT_EQ(ValueOf(choices, "fsdp.recompute"), "none");
}

TEST(Resolve, KeepsAZeroThatSomebodyWrote) {
  v1::JobSpec job = LeastJob();
  job.mutable_optimizer()->mutable_adamw()->set_weight_decay(0);
  job.mutable_fsdp()->set_prefetch_bytes(0);
  std::vector<Choice> choices;
  const Spec spec = ToSpec(Resolve(job, 0, &choices));
  EXPECT_EQ(spec.adamw.weight_decay, 0);
  EXPECT_EQ(spec.prefetch_bytes, 0);
  EXPECT_EQ(ValueOf(choices, "fsdp.prefetch_bytes"), "(not chosen)");
}

TEST(Resolve, PrefetchIsTheLargestUnitInComputePrecision) {
  v1::JobSpec job = LeastJob();
  const int64_t layer_elements = 2 * 128 + 128 * 128 * 2 + 64 * 128 * 2 + 3 * 128 * 384;
  EXPECT_EQ(ToSpec(Resolve(job, 0, nullptr)).prefetch_bytes, layer_elements * 2);
  job.mutable_resources()->set_device(v1::DEVICE_CPU);
  EXPECT_EQ(ToSpec(Resolve(job, 0, nullptr)).prefetch_bytes, layer_elements * 4);
  job.mutable_fsdp()->set_strategy(v1::STRATEGY_NO_SHARD);
  EXPECT_EQ(ToSpec(Resolve(job, 0, nullptr)).prefetch_bytes, 0);
}

TEST(Resolve, ASetBudgetWinsOverWhatNodesReport) {
  v1::JobSpec job = LeastJob();
  EXPECT_EQ(ToSpec(Resolve(job, 1 << 30, nullptr)).memory_budget_bytes, 1 << 30);
  job.mutable_resources()->set_memory_budget_bytes(1 << 29);
  EXPECT_EQ(ToSpec(Resolve(job, 1 << 30, nullptr)).memory_budget_bytes, 1 << 29);
}

TEST(Resolve, TakesTokenFilesAsTheyAre) {
  v1::JobSpec job = LeastJob();
  job.mutable_data()->clear_synthetic();
  job.mutable_data()->add_tokens()->set_path("/a");
  v1::TokenFile* file = job.mutable_data()->add_tokens();
  file->set_path("/b");
  file->set_weight(0.5);
  file->set_type(v1::TOKEN_TYPE_U32);
  const DataConfig data = ToSpec(Resolve(job, 0, nullptr)).data;
  ASSERT_EQ(data.tokens.size(), 2u);
  EXPECT_EQ(data.tokens[0].weight, 1);
  EXPECT_EQ(data.tokens[0].type, TokenType::kU16);
  EXPECT_EQ(data.tokens[1].weight, 0.5);
  EXPECT_EQ(data.tokens[1].type, TokenType::kU32);
}

TEST(Resolve, SchedulesKeepTheirNumbers) {
  v1::JobSpec job = LeastJob();
  job.mutable_schedule()->mutable_linear()->set_warmup_steps(3);
  job.mutable_schedule()->mutable_linear()->set_min_lr_ratio(0.25);
  const ScheduleConfig schedule = ToSpec(Resolve(job, 0, nullptr)).schedule;
  EXPECT_EQ(schedule.shape, ScheduleShape::kLinear);
  EXPECT_EQ(schedule.warmup_steps, 3);
  EXPECT_EQ(schedule.min_lr_ratio, 0.25);
}

}  // namespace
}  // namespace fsdpd
