#include "fsdp/plan/spec/global_batch.h"

#include <gtest/gtest.h>

#include <limits>

namespace fsdpd {
namespace {

TEST(GlobalBatch, IsAMicroBatchOfEachRankThatSharesNoSample) {
  v1::JobSpec job;
  EXPECT_EQ(GlobalBatchOf(job), 1);
  job.mutable_resources()->set_nodes(2);
  job.mutable_resources()->set_ranks_per_node(8);
  job.mutable_train()->set_micro_batch(3);
  EXPECT_EQ(GlobalBatchOf(job), 48);
  job.mutable_parallel()->set_tensor(2);
  job.mutable_parallel()->set_context(2);
  job.mutable_parallel()->set_pipeline(2);
  EXPECT_EQ(GlobalBatchOf(job), 6);
  job.mutable_train()->set_global_batch(24);
  EXPECT_EQ(GlobalBatchOf(job), 24);
}

TEST(GlobalBatch, ASpecThatRulesRefuseDividesByNoZero) {
  v1::JobSpec job;
  job.mutable_parallel()->set_tensor(0);
  EXPECT_EQ(GlobalBatchOf(job), 1);
}

// Four nodes of 2^62 ranks were no rank at all.
TEST(GlobalBatch, ASpecThatRulesRefuseIsSaturatedAndDoesNotOverflow) {
  v1::JobSpec job;
  job.mutable_resources()->set_nodes(4);
  job.mutable_resources()->set_ranks_per_node(int64_t{1} << 62);
  EXPECT_EQ(GlobalBatchOf(job), std::numeric_limits<int64_t>::max());
  job.mutable_train()->set_micro_batch(-2);
  EXPECT_EQ(GlobalBatchOf(job), std::numeric_limits<int64_t>::min());
}

}  // namespace
}  // namespace fsdpd
