#include "fsdp/plan/program/traffic.h"

#include <gtest/gtest.h>

#include <map>

#include "fsdp/plan/program/testing/program_cases.h"

namespace fsdpd {
namespace {

// Traffic of the first instruction of each operation, for the bucket of the middle unit.
std::map<Op, Traffic> TrafficByOp(const ProgramCase& made) {
  std::map<Op, Traffic> traffic;
  const int bucket = made.layout.units[1].buckets[0];
  for (const Instruction& i : made.program.instructions) {
    if (i.bucket < 0 || i.bucket == bucket) traffic.emplace(i.op, TrafficOf(made.spec.mesh, made.layout, i));
  }
  return traffic;
}

const Bucket& Middle(const ProgramCase& made) { return made.layout.buckets[made.layout.units[1].buckets[0]]; }

TEST(Traffic, ShardedBucketUsesAllGatherAndReduceScatter) {
  const ProgramCase made = ThreeUnits(Strategy::kOptimGradsParams, [](Spec* spec) {
    spec->mesh = Mesh::DataParallel(1, 4);
    spec->global_batch = 4;
    spec->precision.compute = spec->precision.grad_comm = DType::kBf16;
    Save(spec);
  });
  const std::map<Op, Traffic> traffic = TrafficByOp(made);
  const int64_t elements = Middle(made).bucket_elements;
  EXPECT_EQ(traffic.at(Op::kGather).pattern, Pattern::kAllGather);
  EXPECT_EQ(traffic.at(Op::kGather).buffer_bytes, 2 * elements);
  EXPECT_EQ(traffic.at(Op::kGather).received_bytes, 2 * elements / 4 * 3);
  EXPECT_EQ(traffic.at(Op::kReduce).pattern, Pattern::kReduceScatter);
  EXPECT_EQ(traffic.at(Op::kReduce).counted_as, v1::COMM_OP_REDUCE_SCATTER);
  EXPECT_EQ(traffic.at(Op::kNorm).counted_as, v1::COMM_OP_ALL_REDUCE);
  for (const Op op :
       {Op::kForward, Op::kBackward, Op::kForwardBackward, Op::kRelease, Op::kUpdate, Op::kSnapshot}) {
    EXPECT_FALSE(traffic.at(op).communicates()) << NameOf(op);
  }
}

TEST(Traffic, WholeGradientsUseAllReduce) {
  const std::map<Op, Traffic> traffic = TrafficByOp(ThreeUnits(Strategy::kNoShard));
  const Traffic& reduce = traffic.at(Op::kReduce);
  EXPECT_EQ(reduce.pattern, Pattern::kAllReduce);
  EXPECT_EQ(reduce.received_bytes, 2 * (reduce.buffer_bytes / 2));  // Two ranks.
  EXPECT_FALSE(traffic.at(Op::kGather).communicates());             // Every rank has all parameters.
}

TEST(Traffic, ReplicasAllReduceOrReduceScatterShards) {
  for (const Strategy outer : {Strategy::kNoShard, Strategy::kOptim}) {
    const ProgramCase made = ThreeUnits(Strategy::kOptimGradsParams, [outer](Spec* spec) {
      spec->mesh = Mesh::DataParallel(2, 2);
      spec->global_batch = 4;
      spec->outer_strategy = outer;
    });
    const std::map<Op, Traffic> traffic = TrafficByOp(made);
    const bool pieces = outer == Strategy::kOptim;
    const Traffic& sum = traffic.at(Op::kReduceOuter);
    EXPECT_EQ(sum.pattern, pieces ? Pattern::kReduceScatter : Pattern::kAllReduce);
    EXPECT_EQ(sum.counted_as, v1::COMM_OP_OUTER_REDUCE);
    EXPECT_EQ(sum.buffer_bytes, 4 * Middle(made).shard_elements);
    EXPECT_EQ(traffic.count(Op::kGatherReplica), pieces ? 1u : 0u);
    if (!pieces) continue;
    EXPECT_EQ(traffic.at(Op::kGatherReplica).counted_as, v1::COMM_OP_OUTER_GATHER);
  }
}

TEST(Traffic, NormAlsoSumsExpertChoices) {
  ProgramCase made = ThreeUnits(Strategy::kOptimGradsParams);
  const int64_t before = TrafficByOp(made).at(Op::kNorm).buffer_bytes;
  made.layout.choices = 256;
  EXPECT_EQ(TrafficByOp(made).at(Op::kNorm).buffer_bytes, before + 4 * 256);
}

TEST(Traffic, SingleRankHasNoTraffic) {
  for (const Strategy strategy : {Strategy::kNoShard, Strategy::kOptimGradsParams}) {
    const ProgramCase made = ThreeUnits(strategy, [](Spec* spec) { spec->mesh = Mesh::DataParallel(1, 1); });
    for (const auto& [op, traffic] : TrafficByOp(made)) EXPECT_FALSE(traffic.communicates()) << NameOf(op);
  }
}

}  // namespace
}  // namespace fsdpd
