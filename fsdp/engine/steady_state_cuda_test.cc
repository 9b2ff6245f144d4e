// Steady state on a GPU: after the second step, neither the caching allocator nor a library allocates device
// memory (fsdp/memory/device_calls.h).
#include <c10/cuda/CUDAFunctions.h>
#include <gtest/gtest.h>

#include "fsdp/engine/local_job.h"

namespace fsdpd {
namespace {

constexpr char kJob[] = R"({
  "name": "test",
  "model": {"llama": {"vocab_size": 1024, "hidden_size": 512, "intermediate_size": 1024, "layers": 4, "heads": 8,
                      "kv_heads": 4}},
  "data": {"synthetic": {}, "sequence_length": 512},
  "train": {"steps": 8, "micro_batch": 2, "global_batch": 8},
  "optimizer": {"clip_norm": 1.0},
  "precision": {"grad_comm": "%2"},
  "fsdp": {"strategy": "%1"},
  "resources": {"device": "DEVICE_CUDA", "ranks_per_node": %3}})";

struct Case {
  std::string strategy;
  std::string grad_comm;
};

std::string JobOf(const Case& param, int ranks) {
  std::string job = kJob;
  for (const auto& [mark, value] : {std::pair("%1", param.strategy), std::pair("%2", param.grad_comm),
                                    std::pair("%3", std::to_string(ranks))}) {
    job.replace(job.find(mark), 2, value);
  }
  return job;
}

class SteadyStateCuda : public ::testing::TestWithParam<Case> {};

TEST_P(SteadyStateCuda, DoesNotAllocate) {
  const int gpus = c10::cuda::device_count();
  if (gpus == 0) GTEST_SKIP() << "no GPU here";
  const auto plan = PlanOfJson(JobOf(GetParam(), gpus >= 4 ? 4 : gpus >= 2 ? 2 : 1));
  ASSERT_TRUE(plan.ok()) << plan.status();
  const auto result = RunLocalJob(*plan);
  ASSERT_TRUE(result.ok()) << result.status();
  for (const std::vector<v1::StepReport>& steps : result->reports) {
    ASSERT_EQ(steps.size(), 8u);
    const v1::MemoryReport& settled = steps[1].memory();
    EXPECT_GT(settled.device_mallocs(), 0);
    for (size_t s = 2; s < steps.size(); ++s) {
      EXPECT_EQ(steps[s].memory().device_mallocs(), settled.device_mallocs()) << "step " << s + 1;
      EXPECT_EQ(steps[s].memory().device_frees(), settled.device_frees()) << "step " << s + 1;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Strategies, SteadyStateCuda,
                         ::testing::Values(Case{"STRATEGY_NO_SHARD", "DTYPE_FP32"},
                                           Case{"STRATEGY_OPTIM", "DTYPE_FP32"},
                                           Case{"STRATEGY_OPTIM_GRADS", "DTYPE_BF16"},
                                           Case{"STRATEGY_OPTIM_GRADS_PARAMS", "DTYPE_FP32"},
                                           Case{"STRATEGY_OPTIM_GRADS_PARAMS", "DTYPE_BF16"}));

}  // namespace
}  // namespace fsdpd
