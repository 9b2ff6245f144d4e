#include "fsdp/plan/memory_strategies.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "fsdp/plan/model/describe_model.h"

namespace fsdpd {
namespace {

// Eight layers of Llama 3 8B's shape; samples so long that activations dominate.
Spec LongSpec() {
  Spec spec;
  LlamaConfig llama;
  llama.vocab_size = 1024;
  llama.hidden_size = 4096;
  llama.intermediate_size = 14336;
  llama.layers = 8;
  llama.heads = 32;
  llama.kv_heads = 8;
  llama.head_size = 128;
  spec.model = llama;
  spec.data.sequence_length = 32768;
  spec.data.synthetic_vocab = 1024;
  spec.steps = 1;
  spec.device = DeviceKind::kCuda;
  spec.precision.compute = spec.precision.grad_comm = DType::kBf16;
  spec.global_batch = 1;
  spec.mesh = Mesh::DataParallel(1, 1);
  return spec;
}

int64_t PeakWith(Spec spec, Recompute recompute, int64_t offloaded) {
  spec.recompute = recompute;
  spec.recompute_layers = 8;
  spec.offloaded_layers = offloaded;
  const ModelFacts model = DescribeSpec(spec);
  const Layout layout = MakeLayout(model, LayoutOptionsOf(spec));
  return PlanMemory(spec, model, layout, CompileProgram(spec, model, layout)).peak_bytes;
}

TEST(MemoryStrategies, KeepsFittingSpec) {
  Spec spec = LongSpec();
  spec.memory_budget_bytes = int64_t{1} << 50;
  const auto ways = MemoryStrategies(spec, {}, 1);
  ASSERT_EQ(ways.size(), 1u);
  EXPECT_EQ(ways[0].offloaded_layers, 0);
  EXPECT_EQ(ways[0].recompute.recompute, Recompute::kNone);
  EXPECT_EQ(ways[0].step_seconds, 0);
}

// At the budget of full recompute there are faster strategies, and every strategy returned fits.
TEST(MemoryStrategies, PrefersOffloadWithFastLink) {
  Spec spec = LongSpec();
  spec.memory_budget_bytes = PeakWith(spec, Recompute::kFull, 0);
  const auto ways = MemoryStrategies(spec, {}, 1);
  ASSERT_GT(ways.size(), 1u);
  EXPECT_GT(ways.front().offloaded_layers, 0);
  double before = 0;
  for (const MemoryStrategy& way : ways) {
    EXPECT_LE(way.peak_bytes, spec.memory_budget_bytes);
    EXPECT_GE(way.step_seconds, before);
    before = way.step_seconds;
  }
  const auto on_device = std::find_if(ways.begin(), ways.end(),
                                      [](const MemoryStrategy& way) { return way.offloaded_layers == 0; });
  ASSERT_NE(on_device, ways.end());
  EXPECT_EQ(on_device->recompute.recompute, Recompute::kFull);
  EXPECT_GT(on_device->step_seconds, 1.05 * ways.front().step_seconds);
}

TEST(MemoryStrategies, OffloadedLayersMayRecompute) {
  Spec spec = LongSpec();
  spec.memory_budget_bytes = PeakWith(spec, Recompute::kFull, 0);
  const auto ways = MemoryStrategies(spec, {}, 1);
  EXPECT_NE(ways.front().recompute.recompute, Recompute::kNone)
      << "all that is kept is more than the link carries";
}

TEST(MemoryStrategies, KeepsHeldFields) {
  Spec spec = LongSpec();
  spec.memory_budget_bytes = PeakWith(spec, Recompute::kFull, 0);
  for (const MemoryStrategy& way : MemoryStrategies(spec, {Recompute::kFull, 5}, 1)) {
    EXPECT_EQ(way.recompute.recompute, Recompute::kFull);
    EXPECT_EQ(way.recompute.layers, 5);
    EXPECT_GT(way.offloaded_layers, 0) << "five layers are too few by themselves";
  }
}

TEST(MemoryStrategies, ReturnsLowestPeakIfNoneFits) {
  Spec spec = LongSpec();
  spec.memory_budget_bytes = 1;
  const auto ways = MemoryStrategies(spec, {}, 1);
  ASSERT_EQ(ways.size(), 1u);
  EXPECT_LE(ways[0].peak_bytes, PeakWith(spec, Recompute::kFull, 0));
  EXPECT_LE(ways[0].peak_bytes, PeakWith(spec, Recompute::kFull, 8));
}

TEST(MemoryStrategies, TimeGrowsWithMicroBatches) {
  Spec spec = LongSpec();
  spec.memory_budget_bytes = PeakWith(spec, Recompute::kFull, 0);
  spec.global_batch = 3;
  const double three = MemoryStrategies(spec, {Recompute::kFull, 8}, 1).front().step_seconds;
  spec.global_batch = 300;
  const double many = MemoryStrategies(spec, {Recompute::kFull, 8}, 1).front().step_seconds;
  EXPECT_NEAR(many, 100 * three, 0.05 * many);
}

TEST(MemoryStrategies, DescribesChoice) {
  EXPECT_EQ(Describe({Recompute::kNone, 3}), "none");
  EXPECT_EQ(Describe({Recompute::kSelective, 1}), "selective on 1 layer");
  EXPECT_EQ(Describe({Recompute::kSelective, 0}), "selective on 0 layers");
  EXPECT_EQ(Describe({Recompute::kFull, 12}), "full on 12 layers");
}

}  // namespace
}  // namespace fsdpd
