#include "fsdp/plan/predict/estimate.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "fsdp/plan/model/describe_model.h"
#include "fsdp/plan/model/stage_partition.h"
#include "fsdp/plan/predict/simulate.h"
#include "fsdp/plan/predict/stage_times.h"

namespace fsdpd {
namespace {

Spec Small(Strategy strategy, int64_t micro_batches) {
  Spec spec;
  spec.model = LlamaConfig{32768, 2048, 8192, 16, 16, 4, 10000, 1e-5, 128};
  spec.data.sequence_length = 4096;
  spec.steps = 1;
  spec.device = DeviceKind::kCuda;
  spec.precision.compute = DType::kBf16;
  spec.mesh = Mesh::DataParallel(1, 8);
  spec.global_batch = 8 * micro_batches;
  spec.strategy = strategy;
  spec.prefetch_bytes = int64_t{200} << 20;
  return spec;
}

struct Both {
  double estimated = 0;
  double simulated = 0;
};

Both SecondsOf(const Spec& spec, const DeviceProfile& profile) {
  const ModelFacts model = DescribeSpec(spec);
  const Layout layout = MakeLayout(model, LayoutOptionsOf(spec));
  const Program program = CompileProgram(spec, model, layout);
  return {EstimateStepSeconds(spec, {model}, {layout}, profile, {8}),
          Simulate(spec, model, layout, program, profile, {8}).step_seconds};
}

Both SecondsOfStages(Spec spec, int64_t stages, int64_t chunks, const DeviceProfile& profile) {
  spec.device = DeviceKind::kCpu;
  spec.mesh = spec.mesh.WithPipeline(stages);
  spec.stage_units = BalancedRuns(DescribeSpec(spec), stages * chunks);
  const std::vector<ModelFacts> models = StagesOf(spec);
  std::vector<Layout> layouts;
  std::vector<Program> programs;
  std::vector<TimedStage> timed;
  for (const ModelFacts& model : models) layouts.push_back(MakeLayout(model, LayoutOptionsOf(spec)));
  for (size_t s = 0; s < models.size(); ++s) programs.push_back(CompileProgram(spec, models[s], layouts[s]));
  for (size_t s = 0; s < models.size(); ++s)
    timed.push_back({&programs[s], models[s].stage,
                     InstructionSeconds(spec, models[s], layouts[s], programs[s], profile, {8})});
  return {EstimateStepSeconds(spec, models, layouts, profile, {8}),
          BusyOf(timed, RunStages(timed, 3)).step_seconds};
}

constexpr Strategy kStrategies[] = {Strategy::kNoShard, Strategy::kOptim, Strategy::kOptimGrads,
                                    Strategy::kOptimGradsParams};

TEST(Estimate, IsNearSimulationForEachStrategy) {
  for (const Strategy strategy : kStrategies) {
    for (const int64_t micro_batches : {1, 2, 5}) {
      const Both both = SecondsOf(Small(strategy, micro_batches), *FindProfile("h200"));
      EXPECT_NEAR(both.estimated / both.simulated, 1, 0.05) << NameOf(strategy) << " x " << micro_batches;
    }
  }
}

TEST(Estimate, IsNearSimulationWithOptimizerOffload) {
  for (const Strategy strategy : kStrategies) {
    for (const int64_t micro_batches : {1, 2, 5}) {
      Spec spec = Small(strategy, micro_batches);
      const Both on_device = SecondsOf(spec, *FindProfile("h200"));
      spec.offload_optimizer = true;
      const Both both = SecondsOf(spec, *FindProfile("h200"));
      EXPECT_NEAR(both.estimated / both.simulated, 1, 0.1) << NameOf(strategy) << " x " << micro_batches;
      EXPECT_GT(both.simulated, on_device.simulated);
    }
  }
}

TEST(Estimate, IsNearSimulationOfPipeline) {
  for (const Strategy strategy : kStrategies) {
    for (const auto& [stages, chunks] :
         {std::pair(2, 1), std::pair(4, 1), std::pair(4, 2), std::pair(2, 4)}) {
      for (const int64_t micro_batches : {4, 12}) {
        Spec spec = Small(strategy, micro_batches);
        spec.global_batch = micro_batches * 8 / stages;
        const Both both = SecondsOfStages(spec, stages, chunks, *FindProfile("h200"));
        EXPECT_NEAR(both.estimated / both.simulated, 1, 0.15)
            << NameOf(strategy) << " x " << micro_batches << ", " << stages << " stages of " << chunks;
      }
    }
  }
}

TEST(Estimate, IsNearSimulationOfZeroBubble) {
  for (const Strategy strategy : {Strategy::kNoShard, Strategy::kOptim}) {
    for (const int stages : {2, 4}) {
      for (const int64_t micro_batches : {4, 12}) {
        Spec spec = Small(strategy, micro_batches);
        spec.global_batch = micro_batches * 8 / stages;
        const Both in_turns = SecondsOfStages(spec, stages, 1, *FindProfile("h200"));
        spec.zero_bubble = true;
        const Both both = SecondsOfStages(spec, stages, 1, *FindProfile("h200"));
        EXPECT_NEAR(both.estimated / both.simulated, 1, 0.15)
            << NameOf(strategy) << " x " << micro_batches << ", " << stages << " stages";
        EXPECT_LT(both.estimated, in_turns.estimated);
        EXPECT_LT(both.simulated, in_turns.simulated);
      }
    }
  }
}

TEST(Estimate, IsNearSimulationIfCommunicationBound) {
  DeviceProfile slow = *FindProfile("h200");
  slow.node_gather_bytes_per_second /= 50;
  slow.node_reduce_bytes_per_second /= 50;
  for (const Strategy strategy : kStrategies) {
    for (const int64_t micro_batches : {1, 2, 5}) {
      const Both both = SecondsOf(Small(strategy, micro_batches), slow);
      EXPECT_NEAR(both.estimated / both.simulated, 1, 0.15) << NameOf(strategy) << " x " << micro_batches;
    }
  }
}

TEST(Estimate, CountsReplicasAndModelParallelAxes) {
  for (const Strategy outer : {Strategy::kNoShard, Strategy::kOptim}) {
    Spec spec = Small(Strategy::kOptimGradsParams, 2);
    spec.mesh = Mesh::DataParallel(2, 8);
    spec.global_batch = 32;
    spec.outer_strategy = outer;
    const Both both = SecondsOf(spec, *FindProfile("h200"));
    EXPECT_NEAR(both.estimated / both.simulated, 1, 0.05) << NameOf(outer);
  }
  Spec spec = Small(Strategy::kOptimGradsParams, 2);
  const double whole = SecondsOf(spec, *FindProfile("h200")).estimated;
  spec.mesh = spec.mesh.WithContext(2).WithTensor(2);
  const Both both = SecondsOf(spec, *FindProfile("h200"));
  EXPECT_NEAR(both.estimated / both.simulated, 1, 0.05);
  EXPECT_GT(both.estimated, whole) << "a quarter of the ranks reads samples, and the batch is the same";
}

TEST(Estimate, GathersKeptBucketsOnce) {
  DeviceProfile slow = *FindProfile("h200");
  slow.node_gather_bytes_per_second /= 50;
  Spec spec = Small(Strategy::kOptimGradsParams, 4);
  const Both each_pass = SecondsOf(spec, slow);
  spec.keep_gathered = true;
  const Both once = SecondsOf(spec, slow);
  EXPECT_LT(once.estimated, each_pass.estimated / 2);
  EXPECT_LT(once.simulated, each_pass.simulated / 2);
}

}  // namespace
}  // namespace fsdpd
