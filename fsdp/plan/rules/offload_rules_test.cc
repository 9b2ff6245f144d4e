#include <gtest/gtest.h>

#include <string>

#include "fsdp/plan/rules/rules.h"

namespace fsdpd {
namespace {

v1::JobSpec OffloadingJob(v1::Device device) {
  v1::JobSpec job;
  job.set_name("tiny-llama");
  job.mutable_model()->set_preset("tiny");
  job.mutable_data()->mutable_synthetic();
  job.mutable_data()->set_sequence_length(128);
  job.mutable_train()->set_steps(200);
  job.mutable_fsdp()->mutable_offload()->set_optimizer(true);
  job.mutable_resources()->set_nodes(2);
  job.mutable_resources()->set_device(device);
  return job;
}

std::string FoundIn(const v1::JobSpec& job) {
  std::string found;
  for (const Violation& each : CheckJob(job)) {
    EXPECT_EQ(each.field.rfind("fsdp.", 0), 0u) << each.rule;
    EXPECT_GT(each.reason.size(), 15u) << each.rule;
    EXPECT_GT(each.fix.size(), 10u) << each.rule;
    found += each.rule + (each.level == ViolationLevel::kWarn     ? " warns "
                          : each.level == ViolationLevel::kAdjust ? " adjusts "
                                                                  : " refuses ");
  }
  return found;
}

TEST(OffloadRules, WarnsOfOffloadOnCpu) {
  EXPECT_EQ(FoundIn(OffloadingJob(v1::DEVICE_CPU)), "offload_on_cpu warns ");
  EXPECT_EQ(FoundIn(OffloadingJob(v1::DEVICE_CUDA)), "");
  v1::JobSpec job = OffloadingJob(v1::DEVICE_CPU);
  job.mutable_fsdp()->mutable_offload()->set_optimizer(false);
  EXPECT_EQ(FoundIn(job), "");
  job = OffloadingJob(v1::DEVICE_CPU);
  job.mutable_optimizer()->mutable_sgd()->set_lr(0.1);
  EXPECT_EQ(FoundIn(job), "offload_without_state adjusts ");
}

// Regression test: the warning named the parent field, and so the wrong line.
TEST(OffloadRules, WarningOnCpuNamesOffloadField) {
  const auto field = [](const v1::JobSpec& job) {
    const Violations found = CheckJob(job);
    EXPECT_EQ(found.size(), 1u);
    return found.empty() ? "" : found[0].field;
  };
  v1::JobSpec job = OffloadingJob(v1::DEVICE_CPU);
  EXPECT_EQ(field(job), "fsdp.offload.optimizer");
  job.mutable_fsdp()->mutable_offload()->set_optimizer(false);
  job.mutable_fsdp()->mutable_offload()->set_activation_layers(2);
  EXPECT_EQ(field(job), "fsdp.offload.activation_layers");
  job.mutable_fsdp()->clear_offload();
  job.mutable_fsdp()->set_memory(v1::MEMORY_RECOMPUTE_OR_OFFLOAD);
  EXPECT_EQ(field(job), "fsdp.memory");
}

TEST(OffloadRules, RejectsOffloadOfMissingState) {
  v1::JobSpec job = OffloadingJob(v1::DEVICE_CUDA);
  job.mutable_optimizer()->mutable_sgd()->set_lr(0.1);
  EXPECT_EQ(FoundIn(job), "offload_without_state adjusts ");
  job.mutable_optimizer()->mutable_sgd()->set_momentum(0.9);
  EXPECT_EQ(FoundIn(job), "");
}

v1::JobSpec KeepingJob(int64_t layers) {
  v1::JobSpec job = OffloadingJob(v1::DEVICE_CUDA);
  job.mutable_fsdp()->mutable_offload()->set_optimizer(false);
  job.mutable_fsdp()->mutable_offload()->set_activation_layers(layers);
  return job;
}

TEST(OffloadRules, RejectsMoreLayersThanModelHas) {
  EXPECT_EQ(FoundIn(KeepingJob(2)), "");
  EXPECT_EQ(FoundIn(KeepingJob(0)), "");
  EXPECT_EQ(FoundIn(KeepingJob(-1)), "offload_layers_range refuses ");
  EXPECT_EQ(FoundIn(KeepingJob(1000)), "offload_layers_above_model adjusts ");
  v1::JobSpec job = KeepingJob(2);
  job.mutable_resources()->set_device(v1::DEVICE_CPU);
  EXPECT_EQ(FoundIn(job), "offload_on_cpu warns ");
}

TEST(OffloadRules, RejectsActivationOffloadOfUnsupportedModel) {
  v1::JobSpec job = KeepingJob(2);
  job.mutable_model()->set_preset("gpt2");
  EXPECT_EQ(FoundIn(job), "offload_layers_of_llama refuses ");
  job.mutable_fsdp()->mutable_offload()->clear_activation_layers();
  job.mutable_fsdp()->set_memory(v1::MEMORY_RECOMPUTE_OR_OFFLOAD);
  EXPECT_EQ(FoundIn(job), "");
  job = KeepingJob(2);
  job.mutable_parallel()->set_pipeline(2);
  EXPECT_EQ(FoundIn(job), "offload_layers_in_stages refuses ");
}

TEST(OffloadRules, RejectsUnknownMemoryKind) {
  v1::JobSpec job = KeepingJob(0);
  job.mutable_fsdp()->set_memory(static_cast<v1::Memory>(7));
  EXPECT_EQ(FoundIn(job), "memory_known refuses ");
}

}  // namespace
}  // namespace fsdpd
