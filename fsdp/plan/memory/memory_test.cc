#include "fsdp/plan/memory/memory.h"

#include <gtest/gtest.h>

#include "base/limits.h"
#include "fsdp/plan/model/describe_model.h"
#include "fsdp/plan/program/testing/program_cases.h"
#include "fsdp/plan/spec/testing/small_package.h"

namespace fsdpd {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

struct Planned {
  ModelFacts model;
  Layout layout;
  Program program;
  StepMemory memory;

  int64_t main_elements() const {
    int64_t sum = 0;
    for (const Bucket& bucket : layout.buckets) sum += bucket.main_elements;
    return sum;
  }
};

Planned PlanOf(const Spec& spec) {
  Planned p;
  p.model = DescribeSpec(spec);
  p.layout = MakeLayout(p.model, LayoutOptionsOf(spec));
  p.program = CompileProgram(spec, p.model, p.layout);
  p.memory = PlanMemory(spec, p.model, p.layout, p.program);
  return p;
}

TEST(Memory, DividesStateButNotArena) {
  const Planned p = PlanOf(Llama8b(8));
  EXPECT_EQ(p.memory.Of("main_params"), p.main_elements() * 4);
  EXPECT_EQ(p.memory.Of("optimizer"), p.main_elements() * 8);
  EXPECT_EQ(p.memory.Of("gradients"), p.main_elements() * 4);
  EXPECT_EQ(p.memory.Of("gather_buffers") + p.memory.Of("reduce_buffers"), p.program.arena_bytes);
  EXPECT_GT(p.memory.Of("gather_buffers"), 0);
  EXPECT_EQ(p.memory.Of("no such component"), 0);
  int64_t sum = 0;
  for (const MemoryComponent& component : p.memory.components) sum += component.bytes;
  EXPECT_EQ(p.memory.peak_bytes, sum);
}

TEST(Memory, ExcludesPinnedHostMemoryFromPeak) {
  Spec spec = Llama8b(8);
  const Planned plain = PlanOf(spec);
  EXPECT_EQ(plain.memory.host_bytes, 0);
  Save(&spec);
  const Planned saving = PlanOf(spec);
  EXPECT_EQ(saving.memory.peak_bytes, plain.memory.peak_bytes);
  EXPECT_GE(saving.memory.host_bytes, saving.memory.Of("main_params") + saving.memory.Of("optimizer"));
  EXPECT_LT(saving.memory.host_bytes,
            saving.memory.Of("main_params") + saving.memory.Of("optimizer") + (1 << 20));
}

TEST(Memory, CountsWholeGradientsAsGradients) {
  Spec spec = Llama8b(8);
  spec.strategy = Strategy::kNoShard;
  const Planned whole = PlanOf(spec);
  const int64_t elements = whole.main_elements();
  EXPECT_EQ(whole.memory.Of("main_params"), elements * 4);
  EXPECT_EQ(whole.memory.Of("gradients"), elements * 4);
  EXPECT_EQ(whole.memory.Of("reduce_buffers"), 0);
  EXPECT_EQ(whole.memory.Of("gather_buffers"), elements * 2);

  spec.strategy = Strategy::kOptim;
  const Planned optim = PlanOf(spec);
  const int64_t shard = optim.main_elements();
  EXPECT_EQ(optim.memory.Of("main_params"), shard * 4);
  EXPECT_EQ(optim.memory.Of("gradients"), shard * 8 * 4 + shard * 4);
  EXPECT_EQ(optim.memory.Of("gather_buffers"), shard * 8 * 2);
}

TEST(Memory, CountsMomentAndGradientTypes) {
  Spec spec = Llama8b(8);
  const int64_t main = PlanOf(spec).main_elements();
  spec.precision.moments = DType::kBf16;
  spec.precision.main_grads = DType::kBf16;
  EXPECT_EQ(PlanOf(spec).memory.Of("optimizer"), main * 4);
  EXPECT_EQ(PlanOf(spec).memory.Of("gradients"), main * 2);
  spec.optimizer.kind = OptimizerKind::kSgd;
  EXPECT_EQ(PlanOf(spec).memory.Of("optimizer"), 0);
  spec.optimizer.momentum = 0.9;
  EXPECT_EQ(PlanOf(spec).memory.Of("optimizer"), main * 2);
}

TEST(Memory, FrozenParametersHaveNoGradientOrMoments) {
  Spec spec = Llama8b(8);
  spec.frozen = {"*"};
  const int64_t main = PlanOf(spec).main_elements();
  spec.frozen = {"layer.*", "embedding.*"};
  const Planned p = PlanOf(spec);
  EXPECT_EQ(p.memory.Of("main_params"), p.main_elements() * 4);
  EXPECT_GE(p.main_elements(), main);
  const int64_t head = int64_t{128256} * 4096 + 4096;
  EXPECT_NEAR(static_cast<double>(p.memory.Of("optimizer")), static_cast<double>(head), 1e4);
  EXPECT_EQ(p.memory.Of("gradients") * 2, p.memory.Of("optimizer"));
}

// Llama 3 8B by hand. Parameters of a layer: queries and outputs 2 x 4096^2, keys and values 2 x 1024 x 4096,
// feed-forward 3 x 14336 x 4096; and two norms. An adapter of rank 16 has 16 x (inputs + outputs).
TEST(Memory, LoraHasStateOfAdaptersOnly) {
  constexpr int64_t kRanks = 8, kLayers = 32;
  const int64_t matrices = kLayers * (2 * 4096 * 4096 + 2 * 1024 * 4096 + 3 * 14336 * 4096);
  const int64_t others = kLayers * 2 * 4096 + 2 * int64_t{128256} * 4096 + 4096;
  const int64_t adapters = kLayers * 16 * (2 * 8192 + 2 * 5120 + 3 * 18432);
  Spec spec = Llama8b(kRanks);
  spec.lora.rank = 16;
  const Planned in_bf16 = PlanOf(spec);
  EXPECT_EQ(in_bf16.memory.Of("main_params"), (2 * (matrices + others) + 4 * adapters) / kRanks);
  spec.lora.nf4 = true;
  const Planned in_nf4 = PlanOf(spec);
  // 64 numbers take 32 bytes and an fp32 scale.
  EXPECT_EQ(in_nf4.memory.Of("main_params"), (matrices / 64 * 36 + 2 * others + 4 * adapters) / kRanks);
  for (const Planned& p : {in_bf16, in_nf4}) {
    EXPECT_EQ(p.memory.Of("optimizer"), 2 * 4 * adapters / kRanks);
    EXPECT_EQ(p.memory.Of("gradients"), 4 * adapters / kRanks);
  }
  spec.lora.nf4 = false;
  spec.strategy = Strategy::kNoShard;
  const Planned whole = PlanOf(spec);
  EXPECT_EQ(whole.memory.Of("main_params"), 2 * (matrices + others) + 4 * adapters);
  EXPECT_EQ(whole.memory.Of("gradients"), 4 * adapters);
  EXPECT_EQ(whole.memory.Of("gather_buffers"), 2 * adapters) << "frozen weights are read in place";
}

TEST(Memory, HfsdpAddsReplicaAndShrinksState) {
  Spec spec = Llama8b(8);
  spec.mesh = spec.mesh.WithReplicas(2);
  const Planned hsdp = PlanOf(spec);
  EXPECT_EQ(hsdp.memory.Of("replica"), 0);
  spec.outer_strategy = Strategy::kOptim;
  const Planned hfsdp = PlanOf(spec);
  EXPECT_EQ(hfsdp.memory.Of("main_params") * 2, hsdp.memory.Of("main_params"));
  EXPECT_EQ(hfsdp.memory.Of("optimizer") * 2, hsdp.memory.Of("optimizer"));
  EXPECT_EQ(hfsdp.memory.Of("gradients"), hsdp.memory.Of("gradients"));
  EXPECT_EQ(hfsdp.memory.Of("replica"), hfsdp.memory.Of("gradients") / 2);
}

TEST(Memory, NarrowGradCommAddsReceiveBuffer) {
  Spec spec = Llama8b(8);
  spec.global_batch = 8;
  const int64_t wide = PlanOf(spec).memory.Of("reduce_buffers");
  spec.precision.grad_comm = DType::kBf16;
  const Planned p = PlanOf(spec);
  EXPECT_EQ(p.memory.Of("gather_buffers") + p.memory.Of("reduce_buffers"), p.program.arena_bytes);
  // Half the bytes twice, each rounded to its alignment.
  EXPECT_NEAR(static_cast<double>(p.memory.Of("reduce_buffers")), static_cast<double>(wide), 1e5);
  spec.global_batch = 64;
  EXPECT_GT(PlanOf(spec).memory.Of("reduce_buffers"), wide) << "sums that are added have a place too";
}

TEST(Memory, CudaAddsLibraryMemory) {
  Spec spec = Llama8b(8);
  EXPECT_EQ(PlanOf(spec).memory.Of("fragmentation"), 0);
  spec.device = DeviceKind::kCuda;
  EXPECT_EQ(PlanOf(spec).memory.Of("library"), int64_t{64} << 20);
  EXPECT_GT(PlanOf(spec).memory.Of("fragmentation"), 0);
}

TEST(Memory, PackagesAddBuffers) {
  Spec spec = SmallSpec(Strategy::kOptimGradsParams);
  v1::JobSpec job;
  *job.mutable_model()->mutable_package() = SmallPackage();
  spec.model = ToModelConfig(job.model());
  const int64_t without = PlanOf(spec).memory.peak_bytes;
  std::get<PackageConfig>(spec.model).buffer_bytes = 1000;
  EXPECT_EQ(PlanOf(spec).memory.peak_bytes, without + 1000);
}

TEST(Memory, CpuCollectivesAddReceiveBuffers) {
  const Planned small = PlanOf(SmallSpec(Strategy::kOptimGradsParams));
  const int64_t bucket = FindLargestUnit(small.layout).bytes;  // One bucket per unit.
  EXPECT_LT(bucket, kMaxTcpReceivedBytes);
  EXPECT_EQ(small.memory.Of("library"), bucket);
  Spec spec = Llama8b(8);
  spec.device = DeviceKind::kCpu;
  spec.precision.compute = DType::kFp32;
  EXPECT_EQ(PlanOf(spec).memory.Of("library"), kMaxTcpReceivedBytes);
  spec.mesh = spec.mesh.WithReplicas(2);
  EXPECT_EQ(PlanOf(spec).memory.Of("library"), 2 * kMaxTcpReceivedBytes) << "and of a shard";
}

TEST(Memory, EveryComponentHasNote) {
  for (const MemoryComponent& component : PlanOf(Llama8b(8)).memory.components) {
    EXPECT_FALSE(component.note.empty()) << component.name;
  }
}

// Activation peak computed by hand: everything before the last layer, then that layer at its backward.
TEST(Memory, ActivationsPeakAtStartOfBackward) {
  Spec spec = Llama8b(8);
  const Planned p = PlanOf(spec);
  int64_t kept = 0;
  for (const UnitFacts& unit : p.model.units) kept += unit.saved_bytes.none;
  const UnitFacts& head = p.model.units.back();
  const UnitFacts& block = p.model.units[p.model.units.size() - 2];
  const bool at_head = head.saved_bytes.none + head.workspace_bytes > block.workspace_bytes;
  EXPECT_EQ(p.memory.Of("activations"), at_head ? kept : kept - head.saved_bytes.none);
  EXPECT_EQ(p.memory.Of("workspace"), at_head ? head.workspace_bytes : block.workspace_bytes);
}

TEST(Memory, RecomputeReducesActivations) {
  Spec spec = Llama8b(8);
  spec.recompute_layers = 32;
  int64_t last = PlanOf(spec).memory.Of("activations");
  for (const Recompute recompute : {Recompute::kSelective, Recompute::kFull}) {
    spec.recompute = recompute;
    const int64_t bytes = PlanOf(spec).memory.Of("activations");
    EXPECT_LT(bytes, last);
    last = bytes;
  }
  EXPECT_GT(last, 32 * int64_t{8192} * 4096 * 2);
}

// CheckBudget relies on this.
TEST(Memory, DoesNotGrowAfterSecondMicroBatch) {
  for (const int64_t prefetch : {int64_t{0}, kGiB, 20 * kGiB}) {
    Spec spec = Llama8b(8);
    spec.prefetch_bytes = prefetch;
    spec.global_batch = 8 * 3;
    const int64_t three = PlanOf(spec).memory.peak_bytes;
    spec.global_batch = 8 * 12;
    EXPECT_EQ(PlanOf(spec).memory.peak_bytes, three) << prefetch;
  }
}

std::optional<RecomputeChoice> CheapestOf(const Spec& spec, std::optional<int64_t> only = std::nullopt) {
  const Planned p = PlanOf(spec);
  return CheapestRecompute(spec, p.model, p.layout, p.program, only);
}

int64_t PeakWith(Spec spec, Recompute recompute, int64_t layers) {
  spec.recompute = recompute;
  spec.recompute_layers = layers;
  return PlanOf(spec).memory.peak_bytes;
}

// With one byte less than a policy needs, the next one is chosen.
TEST(CheapestRecompute, ChoosesCheapestThatFits) {
  Spec spec = Llama8b(8);
  const auto choose = [&](int64_t budget) {
    spec.memory_budget_bytes = budget;
    return CheapestOf(spec);
  };
  const int64_t none = PeakWith(spec, Recompute::kNone, 0);
  EXPECT_EQ(choose(none)->recompute, Recompute::kNone);
  EXPECT_EQ(choose(none - 1)->recompute, Recompute::kSelective);
  for (const Recompute recompute : {Recompute::kSelective, Recompute::kFull}) {
    for (const int64_t layers : {4, 17, 32}) {
      const auto choice = choose(PeakWith(spec, recompute, layers));
      ASSERT_TRUE(choice.has_value());
      EXPECT_EQ(choice->recompute, recompute);
      EXPECT_EQ(choice->layers, layers);
    }
  }
  EXPECT_FALSE(choose(PeakWith(spec, Recompute::kFull, 32) - 1).has_value());
}

TEST(CheapestRecompute, RespectsFixedLayers) {
  Spec spec = Llama8b(8);
  spec.memory_budget_bytes = PeakWith(spec, Recompute::kFull, 20);
  EXPECT_EQ(CheapestOf(spec, 20)->recompute, Recompute::kFull);
  EXPECT_EQ(CheapestOf(spec, 20)->layers, 20);
  EXPECT_FALSE(CheapestOf(spec, 19).has_value());
}

}  // namespace
}  // namespace fsdpd
