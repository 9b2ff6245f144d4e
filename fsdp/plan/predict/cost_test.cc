#include "fsdp/plan/predict/cost.h"

#include <gtest/gtest.h>

namespace fsdpd {
namespace {

// Every rate is a distinct power of two, so that sums show what was counted.
DeviceProfile Round() {
  DeviceProfile p;
  p.fp32_matmul_flops = 1;
  p.half_matmul_flops = 2;
  p.attention_forward_flops = 4;
  p.attention_backward_flops = 8;
  p.memory_bytes_per_second = 16;
  p.node_gather_bytes_per_second = 32;
  p.node_reduce_bytes_per_second = 64;
  p.network_gather_bytes_per_second = 128;
  p.network_reduce_bytes_per_second = 256;
  p.outer_gather_bytes_per_second = 512;
  p.outer_reduce_bytes_per_second = 1024;
  p.collective_latency_seconds = 1 << 20;
  return p;
}
constexpr double kLatency = 1 << 20;

// One block of two matrices of 64 elements.
ModelFacts OneBlock() {
  ModelFacts model;
  model.units.resize(1);
  UnitFacts& unit = model.units[0];
  unit.name = "layer.0";
  unit.params = {{"a", {8, 8}}, {"b", {8, 8}}};
  unit.saved_bytes = {64, 32, 16};
  unit.forward_flops = 100;
  unit.attention_flops = 40;
  unit.selective_flops = 20;
  unit.forward_bytes = 160;
  unit.backward_bytes = 480;
  return model;
}

struct Case {
  Spec spec;
  ModelFacts model = OneBlock();
  Placement placement = {8};

  Case() {
    spec.mesh = Mesh::DataParallel(1, 4);
    spec.global_batch = 4;
    spec.precision.compute = DType::kFp32;
  }

  Layout layout() const { return MakeLayout(model, LayoutOptionsOf(spec)); }

  double SecondsOf(Instruction instruction) const {
    Program program;
    program.instructions = {instruction};
    return InstructionSeconds(spec, model, layout(), program, Round(), placement)[0];
  }
  double SecondsOf(Op op, bool accumulate = false) const {
    Instruction i;
    i.op = op;
    i.unit = 0;
    i.bucket = 0;
    const Layout bucket = layout();
    i.group = GroupOf(op, &bucket.buckets[0]);
    i.accumulate = accumulate;
    return SecondsOf(i);
  }
};

TEST(Cost, ForwardSumsProductsAttentionAndMemory) {
  Case c;
  EXPECT_EQ(c.SecondsOf(Op::kForward), 60 / 1. + 40 / 4. + 160 / 16.);
  c.spec.precision.compute = DType::kBf16;
  EXPECT_EQ(c.SecondsOf(Op::kForward), 60 / 2. + 40 / 4. + 160 / 16.);
}

TEST(Cost, MeasuredTimeReplacesFlops) {
  Case c;
  c.model.units[0].measured = {{{5, 11}, {7, 13}, {3, 17}}};  // By Recompute.
  EXPECT_EQ(c.SecondsOf(Op::kForward), 5 / 1. + 160 / 16.);
  EXPECT_EQ(c.SecondsOf(Op::kBackward), 11 / 1. + 480 / 16.);
  Instruction full;
  full.op = Op::kBackward;
  full.unit = 0;
  full.recompute = Recompute::kFull;
  EXPECT_EQ(c.SecondsOf(full), 17 / 1. + 480 / 16.) << "including the repeated forward";
}

TEST(Cost, AddsWhatTheEngineDoesToMeasuredTime) {
  Case c;
  UnitFacts& unit = c.model.units[0];
  unit.measured = {{{5, 11}, {7, 13}, {3, 17}}};
  unit.engine_flops = 20;
  unit.copied_grads = {1};
  EXPECT_EQ(c.SecondsOf(Op::kForward), 5 + 20 + 160 / 16.);
  EXPECT_EQ(c.SecondsOf(Op::kBackward), 11 + 2 * 20 + (480 + 64 * (4 + 4)) / 16.);
  c.spec.precision.grad_comm = DType::kBf16;
  EXPECT_EQ(c.SecondsOf(Op::kBackward), 11 + 2 * 20 + (480 + 64 * (4 + 2)) / 16.);
  unit.params[1].trainable = false;
  EXPECT_EQ(c.SecondsOf(Op::kBackward), 11 + 1.5 * 20 + 480 / 16.)
      << "half of the weight gradients, no copies";
}

TEST(Cost, CopiesEachGradientWithAKernel) {
  Case c;
  c.model.units[0].copied_grads = {0, 1};
  DeviceProfile profile = Round();
  profile.kernel_seconds = 100;
  Program program;
  program.instructions.resize(1);
  program.instructions[0] = {Op::kBackward, 0};
  const auto seconds = [&] {
    return InstructionSeconds(c.spec, c.model, c.layout(), program, profile, c.placement)[0];
  };
  const double with_two = seconds();
  c.model.units[0].params[0].trainable = false;
  const double with_one = seconds();
  c.model.units[0].copied_grads = {};
  EXPECT_EQ(with_one - seconds(), 100);
  c.model.units[0].params[0].trainable = true;
  EXPECT_EQ(with_two - seconds(), 200);
}

TEST(Cost, ShortAttentionIsLessEfficient) {
  const Case c;
  DeviceProfile profile = Round();
  profile.attention_overhead_tokens = 16;
  Program program;
  program.instructions.resize(2);
  for (Instruction& i : program.instructions) i.unit = 0;
  program.instructions[1].op = Op::kBackward;
  for (const auto& [tokens, factor] : {std::pair(16, 2.), {64, 1.25}}) {
    Spec spec = c.spec;
    spec.data.sequence_length = tokens;
    EXPECT_EQ(InstructionSeconds(spec, c.model, c.layout(), program, profile, c.placement),
              (std::vector<double>{60 + factor * 40 / 4 + 10, 120 + factor * 2.5 * 40 / 8 + 30}));
  }
}

TEST(Cost, DeterministicAttentionIsSlowerIn16Bits) {
  Case c;
  DeviceProfile profile = Round();
  profile.deterministic_forward_slowdown = 2;
  profile.deterministic_backward_slowdown = 4;
  Program program;
  program.instructions.resize(2);
  for (Instruction& i : program.instructions) i.unit = 0;
  program.instructions[1].op = Op::kBackward;
  const auto seconds = [&] {
    return InstructionSeconds(c.spec, c.model, c.layout(), program, profile, c.placement);
  };
  c.spec.deterministic = true;
  EXPECT_EQ(seconds(), (std::vector<double>{60 + 40 / 4. + 10, 120 + 2.5 * 40 / 8 + 30}));
  c.spec.precision.compute = DType::kBf16;
  EXPECT_EQ(seconds(), (std::vector<double>{30 + 2 * 40 / 4. + 10, 60 + 4 * 2.5 * 40 / 8 + 30}));
  c.spec.deterministic = false;
  EXPECT_EQ(seconds(), (std::vector<double>{30 + 40 / 4. + 10, 60 + 2.5 * 40 / 8 + 30}));
}

// Forward uses the kernel of deterministic jobs, backward a faster one.
TEST(Cost, PaddedFlashAttentionIsSlower) {
  Case c;
  c.spec.precision.compute = DType::kBf16;
  c.model.units[0].flash_work = 1.5;
  DeviceProfile profile = Round();
  profile.deterministic_forward_slowdown = 2;
  profile.deterministic_backward_slowdown = 4;
  Program program;
  program.instructions.resize(2);
  for (Instruction& i : program.instructions) i.unit = 0;
  program.instructions[1].op = Op::kBackward;
  const auto seconds = [&] {
    return InstructionSeconds(c.spec, c.model, c.layout(), program, profile, c.placement);
  };
  EXPECT_DOUBLE_EQ(seconds()[0], 30 + 2 * 1.5 * 40 / 4. + 10);
  EXPECT_DOUBLE_EQ(seconds()[1], 60 + 1.79 * 1.5 * 2.5 * 40 / 8 + 30);
  c.spec.deterministic = true;
  EXPECT_DOUBLE_EQ(seconds()[1], 60 + 4 * 1.5 * 2.5 * 40 / 8 + 30);
}

// Repeated work does not count toward the model's FLOPs.
TEST(Cost, StepFlopsExcludeRepeatedWork) {
  Case c;
  c.model.units[0].repeated_flops = 25;
  const double with = StepFlops(c.spec, c.model);
  c.model.units[0].repeated_flops = 0;
  EXPECT_LT(with, StepFlops(c.spec, c.model));
}

TEST(Cost, SmallUnitsAreBoundByKernelLaunches) {
  Case c;
  DeviceProfile profile = Round();
  profile.instruction_seconds = 1000;
  profile.kernel_seconds = 100;
  Program program;
  program.instructions.resize(2);
  for (Instruction& i : program.instructions) i.unit = 0;
  program.instructions[1].op = Op::kBackward;
  const auto seconds = [&] {
    return InstructionSeconds(c.spec, c.model, c.layout(), program, profile, c.placement);
  };
  const std::vector<double> unknown = seconds();
  EXPECT_EQ(unknown, (std::vector<double>{c.SecondsOf(Op::kForward), c.SecondsOf(Op::kBackward)}));
  c.model.units[0].forward_kernels = 9;
  c.model.units[0].backward_kernels = 19;
  EXPECT_EQ(seconds(), (std::vector<double>{1000 + 900, 1000 + 1900}));
  profile.instruction_seconds = profile.kernel_seconds = 1;  // Less than the work.
  EXPECT_EQ(seconds(), unknown);
}

TEST(Cost, BackwardIsTwiceForwardPlusRecompute) {
  Case c;
  const double backward = 2 * 60 / 1. + 2.5 * 40 / 8. + 480 / 16.;
  EXPECT_EQ(c.SecondsOf(Op::kBackward), backward);
  Instruction i;
  i.op = Op::kBackward;
  i.unit = 0;
  i.recompute = Recompute::kSelective;
  EXPECT_EQ(c.SecondsOf(i), backward + 20 / 1. + 160 / 16.);
  i.recompute = Recompute::kFull;
  EXPECT_EQ(c.SecondsOf(i), backward + c.SecondsOf(Op::kForward));
}

// Like autograd units, which save what their operators save.
TEST(Cost, UnitThatSavesAllRecomputesNothing) {
  Case c;
  c.model.units[0].saved_bytes.selective = c.model.units[0].saved_bytes.none;
  Instruction i;
  i.op = Op::kBackward;
  i.unit = 0;
  const double backward = c.SecondsOf(i);
  i.recompute = Recompute::kSelective;
  EXPECT_EQ(c.SecondsOf(i), backward);
}

TEST(Cost, ForwardBackwardSumsBoth) {
  const Case c;
  EXPECT_EQ(c.SecondsOf(Op::kForwardBackward), c.SecondsOf(Op::kForward) + c.SecondsOf(Op::kBackward));
}

TEST(Cost, UnitExchangesUseLinkOfTheirGroup) {
  Case c;
  c.spec.mesh = Mesh::DataParallel(2, 4);
  const double forward = c.SecondsOf(Op::kForward), backward = c.SecondsOf(Op::kBackward);
  c.model.units[0].exchanges = {{Group::kShard, 64, 0}};
  EXPECT_EQ(c.SecondsOf(Op::kForward), forward + kLatency + 2 * 64 * 4 * 3 / 4. / 64);
  EXPECT_EQ(c.SecondsOf(Op::kBackward), backward);
  c.placement = {2};
  EXPECT_EQ(c.SecondsOf(Op::kForward), forward + kLatency + 2 * 64 * 4 * 3 / 4. / 256);
  c.model.units[0].exchanges = {{Group::kReplicate, 0, 64}};
  EXPECT_EQ(c.SecondsOf(Op::kForward), forward);
  EXPECT_EQ(c.SecondsOf(Op::kBackward), backward + kLatency + 2 * 64 * 4 / 2. / 1024);
  EXPECT_EQ(c.SecondsOf(Op::kForwardBackward), c.SecondsOf(Op::kForward) + c.SecondsOf(Op::kBackward));
}

TEST(Cost, SelectiveRecomputeRepeatsExchanges) {
  Case c;
  c.spec.mesh = Mesh::DataParallel(2, 4);
  Instruction i;
  i.op = Op::kBackward;
  i.unit = 0;
  i.recompute = Recompute::kSelective;
  const double backward = c.SecondsOf(i);
  c.model.units[0].exchanges = {{Group::kShard, 64, 0, Exchange::kAllReduce, DType::kFp32, 32}};
  EXPECT_EQ(c.SecondsOf(i), backward + kLatency + 2 * 32 * 4 * 3 / 4. / 64);
}

TEST(Cost, FrozenParametersHalveBackward) {
  Case c;
  const double all = c.SecondsOf(Op::kBackward);
  c.model.units[0].params[1].trainable = false;
  EXPECT_EQ(c.SecondsOf(Op::kBackward), all - 60 / 2);
}

TEST(Cost, CollectivesReceiveRemoteParts) {
  Case c;
  const int64_t bucket = c.layout().buckets[0].bucket_elements;
  EXPECT_EQ(bucket, 128);
  EXPECT_EQ(c.SecondsOf(Op::kGather), 32 * 8 / 16. + kLatency + 96 * 4 / 32.);
  EXPECT_EQ(c.SecondsOf(Op::kReduce), kLatency + 96 * 4 / 64.);
  EXPECT_EQ(c.SecondsOf(Op::kReduce, /*accumulate=*/true), kLatency + 96 * 4 / 64. + 32 * 12 / 16.);
}

TEST(Cost, GroupsAcrossNodesUseNetwork) {
  Case c;
  c.placement.ranks_per_node = 2;
  EXPECT_EQ(c.SecondsOf(Op::kGather), 32 * 8 / 16. + kLatency + 96 * 4 / 128.);
  EXPECT_EQ(c.SecondsOf(Op::kReduce), kLatency + 96 * 4 / 256.);
}

TEST(Cost, AllReduceCountsTwice) {
  Case c;
  c.spec.strategy = Strategy::kNoShard;
  EXPECT_EQ(c.SecondsOf(Op::kReduce), kLatency + 2 * 96 * 4 / 64.);
}

TEST(Cost, LocalGatherIsCastOrNothing) {
  Case c;
  c.spec.strategy = Strategy::kNoShard;
  EXPECT_EQ(c.SecondsOf(Op::kGather), 0) << "read in place";
  c.spec.precision.compute = DType::kBf16;
  EXPECT_EQ(c.SecondsOf(Op::kGather), c.layout().buckets[0].bucket_elements * (4 + 2) / 16.)
      << "a cast alone";
  c.spec.device = DeviceKind::kCuda;
  EXPECT_EQ(c.SecondsOf(Op::kGather), 0) << "the upper halves are read in place";
}

TEST(Cost, NarrowGradCommHalvesBytesAndAddsLocalSum) {
  Case c;
  c.spec.precision.grad_comm = DType::kBf16;
  EXPECT_EQ(c.SecondsOf(Op::kReduce), kLatency + 96 * 2 / 64. + (128 * 2 + 32 * 4) / 16.);
}

TEST(Cost, CudaFusesSumsWithSquares) {
  Case c;
  c.spec.precision.compute = c.spec.precision.grad_comm = DType::kBf16;
  const auto shard = static_cast<double>(c.layout().buckets[0].shard_elements);
  const double received = kLatency + 3 * shard * 2 / 64., sums = shard * (4 * 2 + 4) / 16.;
  const double norm = c.SecondsOf(Op::kNorm);
  EXPECT_EQ(c.SecondsOf(Op::kReduce, /*accumulate=*/true), received + sums + shard * 12 / 16.);
  EXPECT_EQ(c.SecondsOf(Op::kGather), shard * 6 / 16. + kLatency + 3 * shard * 2 / 32.);
  c.spec.device = DeviceKind::kCuda;
  EXPECT_EQ(c.SecondsOf(Op::kReduce), received + sums);
  EXPECT_EQ(c.SecondsOf(Op::kReduce, /*accumulate=*/true), received + sums + shard * 4 / 16.);
  EXPECT_EQ(c.SecondsOf(Op::kNorm), norm - shard * 4 / 16.);
  EXPECT_EQ(c.SecondsOf(Op::kGather), shard * 4 / 16. + kLatency + 3 * shard * 2 / 32.);
}

TEST(Cost, OuterAxisUsesOwnLinkRate) {
  Case c;
  c.spec.mesh = c.spec.mesh.WithReplicas(2);
  EXPECT_EQ(c.layout().buckets[0].shard_elements, 64);
  EXPECT_EQ(c.SecondsOf(Op::kReduceOuter), kLatency + 2 * 32 * 4 / 1024.);
  c.spec.outer_strategy = Strategy::kOptim;
  EXPECT_EQ(c.SecondsOf(Op::kReduceOuter), kLatency + 32 * 4 / 1024.);
  EXPECT_EQ(c.SecondsOf(Op::kGatherReplica), 32 * 8 / 16. + kLatency + 32 * 4 / 512.);
}

TEST(Cost, UpdateReadsAndWritesStateOnce) {
  Case c;
  EXPECT_EQ(c.SecondsOf(Op::kUpdate), 32 * (8 + 4 + 16) / 16.);
  c.spec.precision.moments = DType::kBf16;
  EXPECT_EQ(c.SecondsOf(Op::kUpdate), 32 * (8 + 4 + 8) / 16.);
  c.spec.optimizer.kind = OptimizerKind::kSgd;
  EXPECT_EQ(c.SecondsOf(Op::kUpdate), 32 * (8 + 4) / 16.);
}

TEST(Cost, SnapshotUsesHostLinkInStepsThatSave) {
  Case c;
  c.spec.checkpoint.dir = "/runs/1";
  c.spec.checkpoint.every_steps = 1;
  EXPECT_EQ(c.SecondsOf(Op::kSnapshot), 0) << "most steps save nothing";
  Program program;
  program.instructions.resize(2);
  program.instructions[0].op = Op::kUpdate;
  program.instructions[0].bucket = 0;
  program.instructions[1].op = Op::kSnapshot;
  program.instructions[1].bucket = 0;
  using Seconds = std::vector<double>;
  EXPECT_EQ(SnapshotSeconds(c.spec, c.layout(), program, Round()), (Seconds{0, 3 * 32 * 4 / 8.}));
  c.spec.device = DeviceKind::kCuda;
  c.spec.precision.moments = DType::kBf16;
  EXPECT_NEAR(SnapshotSeconds(c.spec, c.layout(), program, Round())[1], 32 * (4 + 2 + 2) / 50e9, 1e-18);
  c.spec.checkpoint.every_steps = 0;
  EXPECT_EQ(SnapshotSeconds(c.spec, c.layout(), program, Round()), (Seconds{0, 0}));
}

TEST(Cost, SingleRankDoesNotCommunicate) {
  Case c;
  c.spec.mesh = Mesh::DataParallel(1, 1);
  EXPECT_EQ(c.SecondsOf(Op::kReduce), 0);
  EXPECT_EQ(c.SecondsOf(Op::kLoss), 0);
  EXPECT_EQ(c.SecondsOf(Op::kGather), 0);
  EXPECT_EQ(c.SecondsOf(Op::kNorm), 128 * 4 / 16.);
}

TEST(Cost, StepFlopsSumRanksAndMicroBatches) {
  Case c;
  c.spec.global_batch = 12;
  EXPECT_EQ(StepFlops(c.spec, c.model), 3 * 100 * 12);
}

}  // namespace
}  // namespace fsdpd
