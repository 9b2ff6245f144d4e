#include <gtest/gtest.h>

#include <string>

#include "fsdp/plan/rules/rules.h"

namespace fsdpd {
namespace {

v1::JobSpec DeterministicJob(v1::Device device) {
  v1::JobSpec job;
  job.set_name("tiny-llama");
  job.mutable_model()->set_preset("tiny");
  job.mutable_data()->mutable_synthetic();
  job.mutable_data()->set_sequence_length(128);
  job.mutable_train()->set_steps(200);
  job.mutable_train()->set_deterministic(true);
  job.mutable_resources()->set_nodes(2);
  job.mutable_resources()->set_device(device);
  return job;
}

std::string IdsOf(const v1::JobSpec& job) {
  std::string ids;
  for (const Violation& found : CheckJob(job)) {
    EXPECT_EQ(found.level, ViolationLevel::kWarn) << found.rule;
    EXPECT_EQ(found.field, "train.deterministic") << found.rule;
    EXPECT_GT(found.reason.size(), 15u) << found.rule;
    EXPECT_GT(found.fix.size(), 10u) << found.rule;
    ids += found.rule + " ";
  }
  return ids;
}

TEST(DeterministicRules, ReportsCostOfDeterministicAttention) {
  EXPECT_EQ(IdsOf(DeterministicJob(v1::DEVICE_CPU)), "");
  EXPECT_EQ(IdsOf(DeterministicJob(v1::DEVICE_CUDA)), "deterministic_slows_attention ");
  v1::JobSpec job = DeterministicJob(v1::DEVICE_CUDA);
  job.mutable_precision()->set_compute(v1::DTYPE_FP32);
  EXPECT_EQ(IdsOf(job), "");
  job = DeterministicJob(v1::DEVICE_CUDA);
  job.mutable_train()->set_deterministic(false);
  EXPECT_EQ(IdsOf(job), "");
}

TEST(DeterministicRules, WarnsOfPluginKernels) {
  v1::JobSpec job = DeterministicJob(v1::DEVICE_CPU);
  v1::Plugin* plugin = job.mutable_model()->mutable_plugin();
  plugin->set_path("/models/mine.so");
  plugin->set_vocab_size(512);
  for (const char* name : {"first", "last"}) {
    v1::Plugin::Unit* unit = plugin->add_units();
    unit->set_name(name);
    unit->set_output_values(512);
    unit->add_params()->set_name("weight");
    for (int dim = 0; dim < 2; ++dim) unit->mutable_params(0)->add_shape(512);
  }
  EXPECT_EQ(IdsOf(job), "deterministic_plugin ");
  job.mutable_train()->set_deterministic(false);
  EXPECT_EQ(IdsOf(job), "");
}

TEST(DeterministicRules, WarnsOfElasticJobs) {
  v1::JobSpec job = DeterministicJob(v1::DEVICE_CPU);
  job.mutable_checkpoint()->set_dir("/runs/1");
  job.mutable_checkpoint()->set_every_steps(10);
  job.mutable_restart()->mutable_elastic()->set_min_ranks(1);
  EXPECT_EQ(IdsOf(job), "deterministic_elastic ");
  job.mutable_train()->set_deterministic(false);
  EXPECT_EQ(IdsOf(job), "");
}

}  // namespace
}  // namespace fsdpd
