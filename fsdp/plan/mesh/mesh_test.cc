#include "fsdp/plan/mesh/mesh.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <utility>

namespace fsdpd {
namespace {

constexpr Group kAll[] = {Group::kSelf,    Group::kShard,  Group::kReplicate,   Group::kContext,
                          Group::kTensor,  Group::kExpert, Group::kExpertShard, Group::kSample,
                          Group::kReplica, Group::kWorld};

TEST(Mesh, InnermostAxisHasConsecutiveRanks) {
  const Mesh mesh = Mesh::DataParallel(/*replicate=*/2, /*shard=*/3);
  EXPECT_EQ(mesh.world(), 6);
  for (int64_t rank = 0; rank < 6; ++rank) {
    EXPECT_EQ(mesh.IndexIn(Group::kShard, rank), rank % 3);
    EXPECT_EQ(mesh.NumberOf(Group::kShard, rank), rank / 3);
    EXPECT_EQ(mesh.IndexIn(Group::kReplicate, rank), rank / 3);
    EXPECT_EQ(mesh.NumberOf(Group::kReplicate, rank), rank % 3);
    EXPECT_EQ(mesh.IndexAlong(Axis::kShard, rank), rank % 3);
    EXPECT_EQ(mesh.IndexAlong(Axis::kReplicate, rank), rank / 3);
    EXPECT_EQ(mesh.IndexIn(Group::kWorld, rank), rank);
    EXPECT_EQ(mesh.IndexIn(Group::kSelf, rank), 0);
    EXPECT_EQ(mesh.NumberOf(Group::kSelf, rank), rank);
  }
}

TEST(Mesh, GroupsPartitionTheWorld) {
  for (int64_t replicate = 1; replicate <= 4; ++replicate) {
    for (int64_t shard = 1; shard <= 4; ++shard) {
      const Mesh mesh = Mesh::DataParallel(replicate, shard * 12).WithExpert(2).WithContext(3).WithTensor(2);
      for (const Group group : kAll) {
        std::map<int64_t, std::set<int64_t>> indices;  // By group number.
        for (int64_t rank = 0; rank < mesh.world(); ++rank) {
          EXPECT_TRUE(indices[mesh.NumberOf(group, rank)].insert(mesh.IndexIn(group, rank)).second);
        }
        EXPECT_EQ(static_cast<int64_t>(indices.size()) * mesh.SizeOf(group), mesh.world());
        for (const auto& [number, members] : indices) {
          EXPECT_EQ(static_cast<int64_t>(members.size()), mesh.SizeOf(group)) << NameOf(group) << number;
          EXPECT_EQ(*members.rbegin(), mesh.SizeOf(group) - 1);
        }
      }
    }
  }
}

TEST(Mesh, ContextParallelRanksAreConsecutive) {
  const Mesh mesh = Mesh::DataParallel(1, 12).WithContext(3).WithReplicas(2);
  EXPECT_EQ(mesh, Mesh::DataParallel(1, 12).WithReplicas(2).WithContext(3));
  EXPECT_EQ(mesh.data_ranks(), 4);
  for (int64_t rank = 0; rank < 12; ++rank) {
    EXPECT_EQ(mesh.DataRank(rank), rank / 3);
    EXPECT_EQ(mesh.IndexIn(Group::kContext, rank), rank % 3);
    EXPECT_EQ(mesh.IndexIn(Group::kShard, rank), rank % 6);  // They are part of the shard group.
    EXPECT_EQ(mesh.NumberOf(Group::kShard, rank), rank / 6);
  }
}

TEST(Mesh, TensorParallelRanksAreInnermost) {
  const Mesh mesh = Mesh::DataParallel(1, 24).WithTensor(2).WithContext(3).WithReplicas(2);
  EXPECT_EQ(mesh, Mesh::DataParallel(1, 24).WithReplicas(2).WithContext(3).WithTensor(2));
  EXPECT_EQ(mesh.data_ranks(), 4);
  for (int64_t rank = 0; rank < 24; ++rank) {
    EXPECT_EQ(mesh.DataRank(rank), rank / 6);  // All ranks along both axes read the same samples.
    EXPECT_EQ(mesh.IndexIn(Group::kTensor, rank), rank % 2);
    EXPECT_EQ(mesh.IndexIn(Group::kContext, rank), rank / 2 % 3);
    // Each tensor-parallel shard is sharded separately.
    EXPECT_EQ(mesh.IndexIn(Group::kShard, rank), rank / 2 % 6);
    EXPECT_EQ(mesh.IndexIn(Group::kReplica, rank), rank % 12);
  }
}

TEST(Mesh, ExpertGroupsAreWithinShardGroups) {
  const Mesh mesh = Mesh::DataParallel(1, 24).WithContext(2).WithExpert(3).WithReplicas(2);
  EXPECT_EQ(mesh, Mesh::DataParallel(1, 24).WithReplicas(2).WithExpert(3).WithContext(2));
  EXPECT_EQ(mesh.data_ranks(), 12);  // Each reads its own samples.
  for (int64_t rank = 0; rank < 24; ++rank) {
    EXPECT_EQ(mesh.DataRank(rank), rank / 2);
    EXPECT_EQ(mesh.IndexIn(Group::kExpert, rank), rank / 2 % 3);
    EXPECT_EQ(mesh.IndexIn(Group::kShard, rank), rank % 12);
    EXPECT_EQ(mesh.IndexIn(Group::kExpertShard, rank), rank / 6 % 2 * 2 + rank % 2);
    EXPECT_EQ(mesh.NumberOf(Group::kExpertShard, rank), rank / 12 * 3 + rank / 2 % 3);
  }
}

TEST(Mesh, SpanIncludesRanksBetweenMembers) {
  const Mesh mesh = Mesh::DataParallel(2, 12).WithContext(3).WithTensor(2);
  EXPECT_EQ(mesh.SpanOf(Group::kTensor), 2);
  EXPECT_EQ(mesh.SpanOf(Group::kContext), 6);
  EXPECT_EQ(mesh.SpanOf(Group::kShard), 12);
  EXPECT_EQ(mesh.SpanOf(Group::kReplicate), 24);
  EXPECT_EQ(mesh.SpanOf(Group::kSelf), 1);
}

TEST(Mesh, AxisOfSizeOneIsIgnored) {
  const Mesh flat = Mesh::DataParallel(1, 4), both = Mesh::DataParallel(2, 2);
  EXPECT_TRUE(flat.SameMembers(Group::kWorld, Group::kShard));
  EXPECT_TRUE(flat.SameMembers(Group::kSelf, Group::kReplicate));
  EXPECT_FALSE(flat.SameMembers(Group::kSelf, Group::kShard));
  EXPECT_FALSE(both.SameMembers(Group::kWorld, Group::kShard));
  EXPECT_EQ(flat.WithReplicas(2), both);
}

}  // namespace
}  // namespace fsdpd
