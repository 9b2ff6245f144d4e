#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "fsdp/plan/rules/rules.h"

namespace fsdpd {
namespace {

using testing::HasSubstr;

// 2 nodes of 2 ranks; each rank takes 4 of 16 samples.
v1::JobSpec Job(int64_t min_ranks) {
  v1::JobSpec job;
  job.set_name("tiny-llama");
  job.mutable_model()->set_preset("tiny");
  job.mutable_data()->mutable_synthetic();
  job.mutable_data()->set_sequence_length(128);
  job.mutable_train()->set_steps(200);
  job.mutable_train()->set_micro_batch(4);
  job.mutable_train()->set_global_batch(16);
  job.mutable_resources()->set_nodes(2);
  job.mutable_resources()->set_ranks_per_node(2);
  job.mutable_resources()->set_device(v1::DEVICE_CPU);
  job.mutable_checkpoint()->set_dir("/runs/1");
  job.mutable_checkpoint()->set_every_steps(10);
  job.mutable_restart()->mutable_elastic()->set_min_ranks(min_ranks);
  return job;
}

std::string Broken(const v1::JobSpec& job) {
  for (const Violation& violation : CheckJob(job)) {
    if (violation.level == ViolationLevel::kError) return violation.rule;
  }
  return "";
}

TEST(ElasticRules, AcceptsDivisibleSmallerWorlds) {
  v1::JobSpec job = Job(2);
  EXPECT_EQ(Broken(job), "");
  job.mutable_parallel()->set_tensor(2);
  EXPECT_EQ(Broken(job), "");
  job.mutable_parallel()->set_context(2);
  EXPECT_EQ(Broken(job), "elastic_nothing_smaller") << "four ranks share each sample";
}

std::string FixOf(const v1::JobSpec& job) {
  for (const Violation& violation : CheckJob(job)) {
    if (violation.level == ViolationLevel::kError) return violation.fix;
  }
  return "";
}

// Regression test: suggested a smaller min_ranks although there was none.
TEST(ElasticRules, FixNamesObstacleToFewerRanks) {
  EXPECT_THAT(FixOf(Job(3)), HasSubstr("min_ranks: 2 or less"));
  v1::JobSpec job = Job(1);
  job.mutable_parallel()->set_tensor(2);
  job.mutable_parallel()->set_context(2);
  EXPECT_THAT(FixOf(job), HasSubstr("parallel use all 4 ranks"));
  job = Job(2);
  job.mutable_resources()->set_nodes(1);
  job.mutable_resources()->set_ranks_per_node(1);
  EXPECT_THAT(FixOf(job), HasSubstr("one rank cannot shrink"));
}

TEST(ElasticRules, RejectsOutOfRangeValues) {
  EXPECT_EQ(Broken(Job(0)), "elastic_min_ranks_range");
  v1::JobSpec job = Job(1);
  job.mutable_restart()->mutable_elastic()->clear_min_ranks();
  EXPECT_EQ(Broken(job), "elastic_min_ranks_range");
  job = Job(1);
  job.mutable_restart()->mutable_elastic()->set_wait_seconds(-1);
  EXPECT_EQ(Broken(job), "elastic_wait_range");
  job.mutable_restart()->mutable_elastic()->set_wait_seconds(0);
  EXPECT_EQ(Broken(job), "");
}

}  // namespace
}  // namespace fsdpd
