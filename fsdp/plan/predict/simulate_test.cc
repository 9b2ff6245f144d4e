#include "fsdp/plan/predict/simulate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>

#include "fsdp/plan/model/describe_model.h"
#include "fsdp/plan/predict/cost.h"
#include "fsdp/plan/predict/lane_times.h"

namespace fsdpd {
namespace {

Spec Small(int64_t world, Strategy strategy) {
  Spec spec;
  spec.model = LlamaConfig{1024, 256, 512, 4, 4, 2, 10000, 1e-5, 64};
  spec.data.sequence_length = 128;
  spec.steps = 1;
  spec.mesh = Mesh::DataParallel(1, world);
  spec.global_batch = 2 * world;
  spec.strategy = strategy;
  return spec;
}

struct Simulated {
  ModelFacts model;
  Layout layout;
  Program program;
  Simulation result;
};

Simulated SimulatedOf(const Spec& spec, const DeviceProfile& profile) {
  Simulated s;
  s.model = DescribeSpec(spec);
  s.layout = MakeLayout(s.model, LayoutOptionsOf(spec));
  s.program = CompileProgram(spec, s.model, s.layout);
  s.result = Simulate(spec, s.model, s.layout, s.program, profile, {8});
  return s;
}

std::vector<Spec> Specs() {
  std::vector<Spec> specs;
  for (const Strategy strategy :
       {Strategy::kNoShard, Strategy::kOptim, Strategy::kOptimGrads, Strategy::kOptimGradsParams}) {
    for (const int64_t world : {1, 4}) specs.push_back(Small(world, strategy));
  }
  specs.push_back(Small(4, Strategy::kOptimGradsParams));
  specs.back().keep_gathered = true;
  specs.push_back(Small(4, Strategy::kOptimGradsParams));
  specs.back().recompute = Recompute::kFull;
  specs.back().recompute_layers = 2;
  specs.push_back(Small(8, Strategy::kOptimGradsParams));
  specs.back().mesh = specs.back().mesh.WithReplicas(2);
  specs.push_back(specs.back());
  specs.back().outer_strategy = Strategy::kOptim;
  specs.push_back(Small(4, Strategy::kOptimGradsParams));
  specs.back().offload_optimizer = true;
  return specs;
}

DeviceProfile WithoutSlowdown() {
  DeviceProfile profile = *FindProfile("cpu");
  profile.compute_slowdown = 1;
  profile.communication_slowdown = 1;
  return profile;
}

TEST(Simulate, StepIsAtLeastAsLongAsEachLane) {
  for (const Spec& spec : Specs()) {
    const Simulated s = SimulatedOf(spec, WithoutSlowdown());
    std::array<double, kLanes> busy{};
    for (size_t i = 0; i < s.program.instructions.size(); ++i) {
      busy[static_cast<size_t>(s.program.instructions[i].lane)] += s.result.spans[i].seconds;
    }
    for (const double seconds : busy) EXPECT_GE(s.result.step_seconds, seconds * (1 - 1e-9));
    EXPECT_NEAR(s.result.compute_seconds, busy[0], 1e-9);
  }
}

// Instructions never overlap their dependencies.
TEST(Simulate, InstructionsWaitForDependencies) {
  for (const Spec& spec : Specs()) {
    const Simulated s = SimulatedOf(spec, *FindProfile("cpu"));
    for (size_t i = 0; i < s.program.instructions.size(); ++i) {
      for (const int other : s.program.instructions[i].after) {
        EXPECT_GE(s.result.spans[i].start + 1e-12,
                  s.result.spans[other].start + s.result.spans[other].seconds);
      }
    }
  }
}

TEST(Simulate, StepTimeIsComputeExposedAndIdle) {
  for (const Spec& spec : Specs()) {
    const Simulation r = SimulatedOf(spec, *FindProfile("cpu")).result;
    EXPECT_GT(r.compute_seconds, 0);
    EXPECT_LE(r.compute_seconds + r.exposed_seconds, r.step_seconds * (1 + 1e-9));
    for (const SimulatedOp& op : r.ops) {
      EXPECT_GT(op.count, 0);
      EXPECT_LE(op.exposed_seconds, op.seconds * (1 + 1e-9));
      EXPECT_LE(op.exposed_seconds, r.exposed_seconds * (1 + 1e-9));
    }
  }
}

TEST(Simulate, FreeCommunicationLeavesOnlyCompute) {
  DeviceProfile profile = *FindProfile("cpu");
  for (double DeviceProfile::*rate :
       {&DeviceProfile::node_gather_bytes_per_second, &DeviceProfile::node_reduce_bytes_per_second,
        &DeviceProfile::outer_gather_bytes_per_second, &DeviceProfile::outer_reduce_bytes_per_second}) {
    profile.*rate = 1e30;
  }
  profile.memory_bytes_per_second = 1e30;  // Casts and the norm's sum are on communication lanes.
  profile.collective_latency_seconds = 0;
  for (const Spec& spec : Specs()) {
    const Simulation r = SimulatedOf(spec, profile).result;
    EXPECT_NEAR(r.compute_seconds, r.step_seconds, 1e-6 * r.step_seconds);
    EXPECT_LT(r.exposed_seconds, 1e-6 * r.step_seconds);
  }
}

TEST(Simulate, SlowLinksDominateStep) {
  DeviceProfile profile = WithoutSlowdown();
  profile.node_gather_bytes_per_second = 1e3;
  const Simulated s = SimulatedOf(Small(4, Strategy::kOptimGradsParams), profile);
  double gathers = 0;
  for (const SimulatedOp& op : s.result.ops) {
    if (op.op == Op::kGather) gathers = op.seconds;
  }
  EXPECT_NEAR(s.result.step_seconds, gathers, 0.01 * gathers);
  EXPECT_GT(s.result.exposed_seconds, 0.98 * s.result.step_seconds);
}

TEST(Simulate, MorePrefetchIsNeverSlower) {
  DeviceProfile profile = WithoutSlowdown();
  for (const double rate : {1e7, 1e8, 1e9, 1e10}) {
    profile.node_gather_bytes_per_second = rate;
    double last = 1e300;
    Spec spec = Small(4, Strategy::kOptimGradsParams);
    for (const int64_t prefetch : {0, 1 << 20, 1 << 21, 1 << 23, 1 << 26}) {
      spec.prefetch_bytes = prefetch;
      const double seconds = SimulatedOf(spec, profile).result.step_seconds;
      EXPECT_LE(seconds, last * (1 + 1e-9)) << prefetch << " at " << rate;
      last = seconds;
    }
  }
}

TEST(Simulate, CountsAndBytesMatchProgram) {
  const Spec spec = Small(4, Strategy::kOptimGradsParams);
  const Simulated s = SimulatedOf(spec, *FindProfile("cpu"));
  for (const SimulatedOp& op : s.result.ops) {
    EXPECT_EQ(op.count, std::count_if(s.program.instructions.begin(), s.program.instructions.end(),
                                      [&](const Instruction& i) { return i.op == op.op; }));
  }
  int64_t bytes = 0;
  for (const Bucket& bucket : s.layout.buckets) bytes += bucket.bucket_elements / 4 * 3 * 4;
  const auto reduce = std::find_if(s.result.ops.begin(), s.result.ops.end(),
                                   [](const SimulatedOp& op) { return op.op == Op::kReduce; });
  ASSERT_NE(reduce, s.result.ops.end());
  EXPECT_EQ(reduce->bytes, 2 * bytes) << "two micro-batches";
}

TEST(Simulate, GroupsSumOperationsAndExchanges) {
  std::vector<Spec> specs = Specs();
  specs.push_back(Small(4, Strategy::kOptimGradsParams));
  specs.back().mesh = specs.back().mesh.WithContext(2).WithTensor(2);
  for (const Spec& spec : specs) {
    const Simulation r = SimulatedOf(spec, *FindProfile("cpu")).result;
    int64_t ops = 0, groups = 0;
    double exposed = 0;
    for (const SimulatedOp& op : r.ops) ops += op.bytes;
    for (const SimulatedGroup& group : r.groups) {
      EXPECT_GT(spec.mesh.SizeOf(group.group), 1);
      EXPECT_GT(group.count, 0);
      EXPECT_LE(group.exposed_seconds, group.seconds * (1 + 1e-9));
      groups += group.bytes;
      exposed += group.exposed_seconds;
    }
    const bool shares = spec.mesh.SizeOf(Group::kSample) > 1;
    EXPECT_EQ(r.exchanged_seconds > 0, shares);
    EXPECT_EQ(groups > ops, shares) << "units exchange beside the operations";
    EXPECT_LE(r.exchanged_seconds, r.compute_seconds);
    EXPECT_NEAR(exposed, r.exposed_seconds + r.exchanged_seconds, 1e-9 * r.step_seconds);
  }
}

TEST(Simulate, DerivesRatesFromStepTime) {
  const Spec spec = Small(4, Strategy::kOptimGradsParams);
  const DeviceProfile& profile = *FindProfile("cpu");
  const Simulated s = SimulatedOf(spec, profile);
  EXPECT_NEAR(s.result.tokens_per_second * s.result.step_seconds, 8 * 128, 1e-6);
  EXPECT_NEAR(s.result.mfu * s.result.step_seconds * 4 * profile.fp32_peak_flops, StepFlops(spec, s.model),
              1e-3 * StepFlops(spec, s.model));
}

void Save(Spec* spec) {
  spec->checkpoint.dir = "/runs/1";
  spec->checkpoint.every_steps = 10;
}

TEST(Simulate, StepWithoutSaveIsUnaffectedBySnapshots) {
  for (Spec spec : Specs()) {
    const Simulated plain = SimulatedOf(spec, *FindProfile("cpu"));
    Save(&spec);
    const Simulated saving = SimulatedOf(spec, *FindProfile("cpu"));
    EXPECT_EQ(saving.result.step_seconds, plain.result.step_seconds);
    EXPECT_EQ(saving.result.compute_seconds, plain.result.compute_seconds);
    EXPECT_EQ(saving.result.exposed_seconds, plain.result.exposed_seconds);
    EXPECT_EQ(plain.result.snapshot_seconds, 0);
    EXPECT_EQ(plain.result.snapshot_stall_seconds, 0);
    EXPECT_GT(saving.result.snapshot_seconds, 0);
    EXPECT_LT(saving.result.snapshot_seconds, saving.result.step_seconds);
    EXPECT_NEAR(saving.result.snapshot_stall_seconds, 0, 1e-9 * saving.result.step_seconds)
        << "the copies end before the next step's first Update";
  }
}

// The next step's passes overlap the copies; its Updates wait for the rest.
TEST(Simulate, LongSnapshotsStallNextStep) {
  Spec spec = Small(4, Strategy::kOptimGradsParams);
  spec.device = DeviceKind::kCuda;
  Save(&spec);
  DeviceProfile profile = WithoutSlowdown();  // Only products take time.
  profile.attention_forward_flops = profile.attention_backward_flops = 1e30;
  profile.node_gather_bytes_per_second = profile.node_reduce_bytes_per_second = 1e30;
  profile.memory_bytes_per_second = 1e30;
  profile.collective_latency_seconds = 0;
  profile.fp32_matmul_flops = 1e12;
  const Simulation first = SimulatedOf(spec, profile).result;
  const double copies = first.snapshot_seconds;
  for (const double steps : {0.0001, 0.25, 0.5, 2.0}) {  // Duration of the copies, in steps.
    profile.fp32_matmul_flops = 1e12 * first.step_seconds / (steps * copies);
    const Simulation r = SimulatedOf(spec, profile).result;
    EXPECT_EQ(r.snapshot_seconds, copies);
    EXPECT_NEAR(r.step_seconds, steps * copies, 1e-6 * copies);
    EXPECT_NEAR(r.snapshot_stall_seconds, std::max(0.0, 1 - steps) * copies, 1e-6 * copies);
  }
}

// Regression test: a stage's copies were compared with a step time that included waiting for other stages.
TEST(Simulate, SnapshotStallIsPerStage) {
  Spec spec = Small(4, Strategy::kOptimGradsParams);
  spec.device = DeviceKind::kCuda;
  Save(&spec);
  DeviceProfile profile = WithoutSlowdown();
  profile.fp32_matmul_flops = 1e30;
  const Simulated alone = SimulatedOf(spec, profile);
  ASSERT_GT(alone.result.snapshot_stall_seconds, 0);
  std::vector<double> seconds =
      InstructionSeconds(spec, alone.model, alone.layout, alone.program, profile, {8});
  for (double& each : seconds) each *= 1.5;
  const LaneTimes waits = RunLanes(alone.program, seconds, 4, {1, 1});
  const Simulation in_stages = Simulate(spec, alone.model, alone.layout, alone.program, profile, {8}, &waits);
  EXPECT_GT(in_stages.step_seconds, alone.result.step_seconds);
  EXPECT_EQ(in_stages.snapshot_stall_seconds, alone.result.snapshot_stall_seconds);
}

// State transfers are hidden by the next step's first forward only.
TEST(Simulate, LongStateTransferStallsStep) {
  Spec spec = Small(4, Strategy::kOptimGradsParams);
  spec.device = DeviceKind::kCuda;
  const DeviceProfile profile = *FindProfile("h200");
  const Simulation plain = SimulatedOf(spec, profile).result;
  spec.offload_optimizer = true;
  const Simulation r = SimulatedOf(spec, profile).result;
  EXPECT_EQ(plain.offload_seconds, 0);
  EXPECT_GT(r.offload_seconds, 0);
  EXPECT_GT(r.offload_stall_seconds, 0);
  EXPECT_LE(r.offload_stall_seconds, 2 * r.offload_seconds);
  EXPECT_NEAR(r.step_seconds - r.offload_stall_seconds, plain.step_seconds, 0.05 * plain.step_seconds);
}

// Peaks of the timeline equal those of the plan: nothing unplanned is live, and the transient parts reach
// their planned size.
TEST(Simulate, MemoryTimelinePeakEqualsPlan) {
  for (const Spec& spec : Specs()) {
    const Simulated s = SimulatedOf(spec, *FindProfile("cpu"));
    const StepMemory planned = PlanMemory(spec, s.model, s.layout, s.program);
    std::vector<int64_t> peak(SimulatedComponents().size());
    int64_t live_peak = 0, transient_peak = 0;
    for (const MemorySample& sample : s.result.memory) {
      ASSERT_EQ(sample.bytes.size(), peak.size());
      for (size_t c = 0; c < peak.size(); ++c) {
        EXPECT_GE(sample.bytes[c], 0) << SimulatedComponents()[c];
        peak[c] = std::max(peak[c], sample.bytes[c]);
      }
      live_peak = std::max(live_peak, sample.bytes[3] + sample.bytes[4] + sample.bytes[5]);
      transient_peak = std::max(transient_peak, sample.bytes[6] + sample.bytes[7]);
    }
    for (const size_t constant : {0, 1, 2}) {
      EXPECT_EQ(peak[constant], planned.Of(SimulatedComponents()[constant]));
    }
    EXPECT_LE(live_peak, s.program.arena_bytes);
    if (spec.shards_grads()) EXPECT_EQ(peak[4], planned.Of("gather_buffers"));
    const bool in_place = s.layout.buckets[0].read_in_place() && !spec.shards_grads();
    EXPECT_EQ(live_peak > 0, !in_place);
    EXPECT_EQ(transient_peak, planned.Of("activations") + planned.Of("workspace"));
  }
}

// Regression test: for Llama 3 70B with several micro-batches, the table had 1.96 GiB of gather buffers and
// the picture 3.55.
TEST(Simulate, TimelineAndTableAgreeOnGatherBuffers) {
  for (const int64_t micro_batches : {1, 4}) {
    Spec spec = Small(64, Strategy::kOptimGradsParams);
    LlamaConfig& llama = std::get<LlamaConfig>(spec.model);
    llama.vocab_size = 128256;
    llama.hidden_size = 8192;
    llama.intermediate_size = 28672;
    llama.layers = 8;
    llama.heads = 64;
    llama.kv_heads = 8;
    llama.head_size = 128;
    spec.data.sequence_length = 8192;
    spec.device = DeviceKind::kCuda;
    spec.precision.compute = DType::kBf16;
    spec.precision.grad_comm = DType::kBf16;
    spec.global_batch = 64 * micro_batches;
    spec.prefetch_bytes = int64_t{2} << 30;
    const Simulated s = SimulatedOf(spec, *FindProfile("h200"));
    int64_t gathered = 0;
    for (const MemorySample& sample : s.result.memory) gathered = std::max(gathered, sample.bytes[4]);
    EXPECT_EQ(gathered, PlanMemory(spec, s.model, s.layout, s.program).Of("gather_buffers"));
  }
}

// A fast link is hidden by compute; with a slow one, the step takes two transfers, forward and backward,
// partly hidden.
TEST(Simulate, ActivationOffloadUsesLinkTwice) {
  Spec spec = Small(2, Strategy::kOptimGradsParams);
  spec.device = DeviceKind::kCuda;
  DeviceProfile profile = *FindProfile("h200");
  const Simulation plain = SimulatedOf(spec, profile).result;
  spec.offloaded_layers = 2;
  const Simulation r = SimulatedOf(spec, profile).result;
  EXPECT_GT(r.offload_seconds, 0);
  EXPECT_NEAR(r.step_seconds - r.offload_stall_seconds, plain.step_seconds, 1e-9);
  EXPECT_LE(r.offload_stall_seconds, 2 * r.offload_seconds);
  profile.half_matmul_flops = profile.fp32_matmul_flops = 1e9;  // Compute is very slow.
  const Simulation slow = SimulatedOf(spec, profile).result;
  EXPECT_LT(slow.offload_stall_seconds, 0.2 * slow.offload_seconds);
}

}  // namespace
}  // namespace fsdpd
