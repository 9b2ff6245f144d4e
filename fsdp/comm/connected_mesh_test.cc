#include "fsdp/comm/connected_mesh.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <tuple>
#include <vector>

#include "base/check.h"
#include "fsdp/comm/testing/communicator_test_ranks.h"
#include "fsdp/lane/lane.h"

namespace fsdpd {
namespace {

// Groups that units communicate over, in every case here.
const std::vector<Group> kExchanged = {Group::kReplicate, Group::kWorld};

std::vector<ConnectedMesh> MakeMemoryMesh(const Mesh& mesh) { return MakeLocalMesh(mesh, kExchanged); }

std::vector<ConnectedMesh> MakeTcpMesh(const Mesh& mesh) {
  LocalStore store;
  const auto world = static_cast<int>(mesh.world());
  std::vector<ConnectedMesh> ranks(world);
  OnEveryRank(world, [&](int rank) {
    CommunicatorOptions options;
    options.rank = rank;
    options.size = world;
    auto connected = ConnectMesh(options, mesh, kExchanged, &store);
    FSDPD_CHECK_OK(connected.status());
    ranks[rank] = std::move(*connected);
  });
  return ranks;
}

struct Maker {
  std::string name;
  std::function<std::vector<ConnectedMesh>(const Mesh& mesh)> make;
};

struct Shape {
  int world = 1;
  int outer_size = 1;
};

class EveryMesh : public testing::TestWithParam<std::tuple<Maker, Shape>> {
 protected:
  void SetUp() override {
    const auto [world, outer_size] = std::get<1>(GetParam());
    world_ = world;
    outer_size_ = outer_size;
    ranks_ = std::get<0>(GetParam()).make(Mesh::DataParallel(outer_size, world / outer_size));
  }

  int world_ = 0;
  int outer_size_ = 0;
  std::vector<ConnectedMesh> ranks_;
};

std::string NameOfCase(const testing::TestParamInfo<std::tuple<Maker, Shape>>& info) {
  const Shape& shape = std::get<1>(info.param);
  return std::get<0>(info.param).name + std::to_string(shape.world) + "By" + std::to_string(shape.outer_size);
}

INSTANTIATE_TEST_SUITE_P(Cpu, EveryMesh,
                         testing::Combine(testing::Values(Maker{"Local", MakeMemoryMesh},
                                                          Maker{"Tcp", MakeTcpMesh}),
                                          testing::Values(Shape{1, 1}, Shape{3, 1}, Shape{2, 2}, Shape{4, 2},
                                                          Shape{6, 3}, Shape{8, 4})),
                         NameOfCase);

// The ranks in `group` of `rank`, collected from all of them.
std::vector<float> MembersOf(Communicator* group, int rank) {
  std::vector<float> members(group->size());
  members[group->rank()] = static_cast<float>(rank);
  EXPECT_EQ(group->AllGather(members.data(), 1, DType::kFp32), absl::OkStatus());
  return members;
}

TEST_P(EveryMesh, HasInnerAndOuterGroups) {
  const int inner_size = world_ / outer_size_;
  OnEveryRank(world_, [&](int rank) {
    const ConnectedMesh& mesh = ranks_[rank];
    EXPECT_EQ(mesh.position().rank, rank);
    std::vector<float> neighbors, replicas, everyone;
    for (int r = 0; r < world_; ++r) {
      everyone.push_back(static_cast<float>(r));
      if (r / inner_size == rank / inner_size) neighbors.push_back(static_cast<float>(r));
      if (r % inner_size == rank % inner_size) replicas.push_back(static_cast<float>(r));
    }
    EXPECT_EQ(MembersOf(mesh.Find(Group::kShard, Role::kGather), rank), neighbors);
    EXPECT_EQ(MembersOf(mesh.Find(Group::kShard, Role::kReduce), rank), neighbors);
    EXPECT_EQ(MembersOf(mesh.all(), rank), everyone);
    // A group with the members of another has no communicator of its own.
    EXPECT_EQ(mesh.all() == mesh.Find(Group::kShard, Role::kReduce), outer_size_ == 1);
    if (world_ > 1) EXPECT_EQ(MembersOf(mesh.Find(Group::kWorld, Role::kUnit), rank), everyone);
    if (outer_size_ == 1) return;
    EXPECT_EQ(MembersOf(mesh.Find(Group::kReplicate, Role::kOuter), rank), replicas);
    EXPECT_EQ(MembersOf(mesh.Find(Group::kReplicate, Role::kUnit), rank), replicas);
    EXPECT_NE(mesh.Find(Group::kReplicate, Role::kUnit), mesh.Find(Group::kReplicate, Role::kOuter));
  });
}

constexpr int kRounds = 20;
constexpr int64_t kCount = 1001;

// Distinct values, so that a result of another round or group is detected.
float Value(int rank, int round) { return static_cast<float>(rank * 3 + round); }

// The sum of Value over all ranks of the group, in every round.
absl::Status AllReduceRounds(Communicator* group, int rank, const std::vector<int>& members) {
  for (int round = 0; round < kRounds; ++round) {
    std::vector<float> buffer(kCount, Value(rank, round));
    FSDPD_RETURN_IF_ERROR(group->AllReduce(buffer.data(), kCount));
    float sum = 0;
    for (const int member : members) sum += Value(member, round);
    EXPECT_EQ(buffer, std::vector<float>(kCount, sum));
  }
  return absl::OkStatus();
}

absl::Status AllGatherRounds(Communicator* group, int rank, const std::vector<int>& members) {
  for (int round = 0; round < kRounds; ++round) {
    std::vector<float> buffer(kCount * group->size(), -1), expected;
    for (int64_t i = 0; i < kCount; ++i) buffer[group->rank() * kCount + i] = Value(rank, round);
    FSDPD_RETURN_IF_ERROR(group->AllGather(buffer.data(), kCount, DType::kFp32));
    for (const int member : members) expected.insert(expected.end(), kCount, Value(member, round));
    EXPECT_EQ(buffer, expected);
  }
  return absl::OkStatus();
}

absl::Status ReduceScatterRounds(Communicator* group, int rank, const std::vector<int>& members) {
  for (int round = 0; round < kRounds; ++round) {
    std::vector<float> in(kCount * group->size(), Value(rank, round)), out(kCount);
    FSDPD_RETURN_IF_ERROR(group->ReduceScatter(in.data(), nullptr, out.data(), kCount, DType::kFp32));
    float sum = 0;
    for (const int member : members) sum += Value(member, round);
    EXPECT_EQ(out, std::vector<float>(kCount, sum));
  }
  return absl::OkStatus();
}

TEST_P(EveryMesh, GroupsRunConcurrently) {
  const int inner_size = world_ / outer_size_;
  OnEveryRank(world_, [&](int rank) {
    std::vector<int> neighbors, replicas, everyone;
    for (int r = 0; r < world_; ++r) {
      everyone.push_back(r);
      if (r / inner_size == rank / inner_size) neighbors.push_back(r);
      if (r % inner_size == rank % inner_size) replicas.push_back(r);
    }
    const ConnectedMesh& mesh = ranks_[rank];
    const auto gather = MakeThreadLane(), reduce = MakeThreadLane(), outer = MakeThreadLane(),
               world = MakeThreadLane();
    gather->Submit([&] { return AllGatherRounds(mesh.Find(Group::kShard, Role::kGather), rank, neighbors); });
    reduce->Submit(
        [&] { return ReduceScatterRounds(mesh.Find(Group::kShard, Role::kReduce), rank, neighbors); });
    if (outer_size_ > 1) {
      outer->Submit(
          [&] { return AllReduceRounds(mesh.Find(Group::kReplicate, Role::kOuter), rank, replicas); });
      world->Submit([&] { return AllReduceRounds(mesh.all(), rank, everyone); });
    }
    for (Lane* lane : {gather.get(), reduce.get(), outer.get(), world.get()}) {
      EXPECT_EQ(lane->Synchronize(), absl::OkStatus());
    }
    // Before any rank closes its connections.
    EXPECT_EQ(mesh.all()->Barrier(), absl::OkStatus());
  });
}

TEST_P(EveryMesh, AbortsAllGroups) {
  for (const ConnectedMesh& mesh : ranks_) mesh.Abort();
  for (const ConnectedMesh& mesh : ranks_) {
    std::vector<Communicator*> groups = {mesh.Find(Group::kShard, Role::kGather),
                                         mesh.Find(Group::kShard, Role::kReduce), mesh.all()};
    if (outer_size_ > 1) groups.push_back(mesh.Find(Group::kReplicate, Role::kOuter));
    for (Communicator* group : groups) EXPECT_EQ(group->Barrier().code(), absl::StatusCode::kUnavailable);
  }
}

TEST(Mesh, ConnectErrorNamesTheGroup) {
  LocalStore store;
  CommunicatorOptions options;
  options.rank = 3;
  options.size = 4;
  options.rendezvous_timeout = absl::Milliseconds(50);
  const auto mesh = ConnectMesh(options, Mesh::DataParallel(2, 2), /*exchanged=*/{}, &store);
  EXPECT_EQ(mesh.status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_NE(mesh.status().ToString().find("shard/gather/1"), std::string::npos) << mesh.status();
}

}  // namespace
}  // namespace fsdpd
