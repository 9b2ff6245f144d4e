#include "fsdp/plan/spec/smaller_worlds.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace fsdpd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

v1::JobSpec Job(int64_t nodes, int64_t ranks, int64_t min_ranks, int64_t batch = 0) {
  v1::JobSpec job;
  job.mutable_resources()->set_nodes(nodes);
  job.mutable_resources()->set_ranks_per_node(ranks);
  if (batch > 0) job.mutable_train()->set_global_batch(batch);
  job.mutable_restart()->mutable_elastic()->set_min_ranks(min_ranks);
  return job;
}

std::vector<std::string> Names(const v1::JobSpec& job) {
  std::vector<std::string> names;
  for (const World& world : SmallerWorlds(job))
    names.push_back(std::to_string(world.nodes) + "x" + std::to_string(world.ranks_per_node));
  return names;
}

TEST(SmallerWorlds, ListsDivisorsWithMostRanksFirst) {
  EXPECT_THAT(Names(Job(2, 2, 1)), ElementsAre("1x2", "2x1", "1x1"));
  EXPECT_THAT(Names(Job(4, 1, 1)), ElementsAre("2x1", "1x1")) << "3 ranks do not divide 4 samples";
  EXPECT_THAT(Names(Job(4, 1, 2, 12)), ElementsAre("3x1", "2x1"));
  EXPECT_THAT(Names(Job(3, 1, 2)), IsEmpty());
}

TEST(SmallerWorlds, KeepsModelParallelAxes) {
  v1::JobSpec job = Job(2, 4, 1);
  job.mutable_parallel()->set_tensor(2);
  EXPECT_THAT(Names(job), ElementsAre("1x4", "2x2", "1x2"));
  job.mutable_parallel()->set_context(2);
  EXPECT_THAT(Names(job), ElementsAre("1x4", "2x2"));
  job.mutable_train()->set_micro_batch(2);
  EXPECT_THAT(Names(job), ElementsAre("1x4", "2x2"));
}

TEST(SmallerWorlds, KeepsGlobalBatch) {
  v1::JobSpec job = Job(2, 4, 2);
  job.mutable_train()->set_micro_batch(3);
  const v1::JobSpec smaller = InWorld(job, {1, 2});
  EXPECT_EQ(smaller.train().global_batch(), 24);
  EXPECT_EQ(smaller.train().micro_batch(), 3);
  EXPECT_EQ(smaller.resources().nodes(), 1);
  EXPECT_EQ(smaller.resources().ranks_per_node(), 2);
  EXPECT_FALSE(smaller.restart().has_elastic());
}

TEST(SmallerWorlds, DropsReplicasBeforeResharding) {
  v1::JobSpec job = Job(4, 2, 1);
  job.mutable_fsdp()->mutable_outer()->set_size(4);
  EXPECT_EQ(InWorld(job, {2, 2}).fsdp().outer().size(), 2);
  EXPECT_FALSE(InWorld(job, {1, 2}).fsdp().has_outer());
  EXPECT_FALSE(InWorld(job, {1, 1}).fsdp().has_outer());
}

TEST(SmallerWorlds, KeepsShardSizeWhileReplicasRemain) {
  v1::JobSpec job = Job(4, 8, 1);
  job.mutable_fsdp()->mutable_outer()->set_size(4);  // 8 ranks each.
  EXPECT_FALSE(InWorld(job, {3, 4}).fsdp().has_outer());
  EXPECT_EQ(InWorld(job, {2, 8}).fsdp().outer().size(), 2);
  EXPECT_EQ(InWorld(job, {3, 8}).fsdp().outer().size(), 3);
  EXPECT_EQ(InWorld(job, {4, 5}).fsdp().outer().size(), 2);
}

}  // namespace
}  // namespace fsdpd
