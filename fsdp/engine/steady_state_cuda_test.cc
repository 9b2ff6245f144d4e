// On a GPU, after the second step, nobody asks the device for memory: not the caching allocator by its own
// count, and not through cudaMalloc itself, which this test stands in front of.
#include <absl/time/clock.h>
#include <c10/cuda/CUDAFunctions.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <gtest/gtest.h>

#include "base/mutex.h"
#include "fsdp/engine/local_job.h"

namespace fsdpd {
namespace {

// When cudaMalloc was called, by anybody in this process.
class MallocTimes {
 public:
  void Add() {
    MutexLock lock(&mutex_);
    unix_nanos_.push_back(absl::ToUnixNanos(absl::Now()));
  }

  int CountAfter(int64_t unix_nanos) {
    MutexLock lock(&mutex_);
    int count = 0;
    for (const int64_t at : unix_nanos_) count += at > unix_nanos ? 1 : 0;
    return count;
  }

 private:
  Mutex mutex_;
  std::vector<int64_t> unix_nanos_ ABSL_GUARDED_BY(mutex_);
};

MallocTimes& Mallocs() {
  static auto* times = new MallocTimes;
  return *times;
}

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

class SteadyStateOnGpus : public ::testing::TestWithParam<Case> {};

TEST_P(SteadyStateOnGpus, AsksTheDeviceForNoMemory) {
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
  EXPECT_GT(Mallocs().CountAfter(0), 0) << "the test does not stand in front of cudaMalloc";
  int64_t all_settled = 0;
  for (const auto& steps : result->reports) all_settled = std::max(all_settled, steps[1].unix_nanos());
  EXPECT_EQ(Mallocs().CountAfter(all_settled), 0);
}

INSTANTIATE_TEST_SUITE_P(Strategies, SteadyStateOnGpus,
                         ::testing::Values(Case{"STRATEGY_NO_SHARD", "DTYPE_FP32"},
                                           Case{"STRATEGY_OPTIM", "DTYPE_FP32"},
                                           Case{"STRATEGY_OPTIM_GRADS", "DTYPE_BF16"},
                                           Case{"STRATEGY_OPTIM_GRADS_PARAMS", "DTYPE_FP32"},
                                           Case{"STRATEGY_OPTIM_GRADS_PARAMS", "DTYPE_BF16"}));

}  // namespace
}  // namespace fsdpd

// In front of the runtime's, for every library of this process.
extern "C" cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  static const auto real = reinterpret_cast<cudaError_t (*)(void**, size_t)>(dlsym(RTLD_NEXT, "cudaMalloc"));
  fsdpd::Mallocs().Add();
  return real(pointer, bytes);
}
