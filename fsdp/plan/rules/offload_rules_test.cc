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
    EXPECT_EQ(each.field, "fsdp.offload.optimizer") << each.rule;
    EXPECT_GT(each.reason.size(), 15u) << each.rule;
    EXPECT_GT(each.fix.size(), 10u) << each.rule;
    found += each.rule + (each.level == FaultLevel::kWarn ? " warns " : " adjusts ");
  }
  return found;
}

TEST(OffloadRules, OnCpuNothingIsSaved) {
  EXPECT_EQ(FoundIn(OffloadingJob(v1::DEVICE_CPU)), "offload_on_cpu warns ");
  EXPECT_EQ(FoundIn(OffloadingJob(v1::DEVICE_CUDA)), "");
  v1::JobSpec job = OffloadingJob(v1::DEVICE_CPU);
  job.mutable_fsdp()->mutable_offload()->set_optimizer(false);
  EXPECT_EQ(FoundIn(job), "");
}

TEST(OffloadRules, WhatIsNotThereIsNotOffloaded) {
  v1::JobSpec job = OffloadingJob(v1::DEVICE_CUDA);
  job.mutable_optimizer()->mutable_sgd()->set_lr(0.1);
  EXPECT_EQ(FoundIn(job), "offload_without_state adjusts ");
  job.mutable_optimizer()->mutable_sgd()->set_momentum(0.9);
  EXPECT_EQ(FoundIn(job), "");
}

}  // namespace
}  // namespace fsdpd
