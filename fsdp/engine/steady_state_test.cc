// In steady state a rank asks the system for no memory: after the first steps everything comes from the
// caching allocator, and the peak stays where it is. What else would show up as a spike or a stall in a long
// run.
#include <gtest/gtest.h>

#include "fsdp/engine/local_job.h"
#include "fsdp/memory/host_caching_allocator.h"

namespace fsdpd {
namespace {

constexpr char kJob[] = R"({
  "name": "test",
  "model": {"llama": {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "layers": 3, "heads": 4}},
  "data": {"synthetic": {}, "sequence_length": 16},
  "train": {"steps": 10, "micro_batch": 2, "global_batch": 4},
  "optimizer": {"clip_norm": 1.0},
  %s,
  "resources": {"device": "DEVICE_CPU"}})";

std::string JobWith(const std::string& settings) {
  std::string job = kJob;
  return job.replace(job.find("%s"), 2, settings);
}

class SteadyState : public ::testing::TestWithParam<std::string> {
 protected:
  static void SetUpTestSuite() { InstallHostCachingAllocator(); }
};

TEST_P(SteadyState, AsksTheSystemForNoMemoryAndKeepsItsPeak) {
  const auto plan = PlanOfJson(JobWith(GetParam()));
  ASSERT_TRUE(plan.ok()) << plan.status();
  const auto result = RunLocalJob(*plan);
  ASSERT_TRUE(result.ok()) << result.status();
  const std::vector<v1::StepReport>& steps = result->reports[0];
  ASSERT_EQ(steps.size(), 10u);
  const v1::MemoryReport& settled = steps[2].memory();
  EXPECT_GT(settled.device_mallocs(), 0);
  EXPECT_GT(settled.allocated_bytes(), settled.arena_bytes());
  EXPECT_GT(settled.peak_bytes(), settled.allocated_bytes());
  for (size_t s = 3; s < steps.size(); ++s) {
    const v1::MemoryReport& memory = steps[s].memory();
    EXPECT_EQ(memory.device_mallocs(), settled.device_mallocs()) << "step " << s + 1;
    EXPECT_EQ(memory.device_frees(), settled.device_frees()) << "step " << s + 1;
    EXPECT_EQ(memory.reserved_bytes(), settled.reserved_bytes()) << "step " << s + 1;
    EXPECT_EQ(memory.peak_bytes(), settled.peak_bytes()) << "step " << s + 1;
    EXPECT_GT(memory.allocations(), steps[s - 1].memory().allocations());
    EXPECT_EQ(memory.spikes(), 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Programs, SteadyState,
                         ::testing::Values(R"("fsdp": {"recompute": "RECOMPUTE_NONE"})",
                                           R"("fsdp": {"recompute": "RECOMPUTE_FULL"})",
                                           R"("fsdp": {"strategy": "STRATEGY_NO_SHARD"})",
                                           // Sums on their way from a narrow wire to a narrow shard.
                                           R"("fsdp": {"strategy": "STRATEGY_OPTIM_GRADS"},
                         "precision": {"grad_comm": "DTYPE_BF16", "main_grads": "DTYPE_BF16", "moments": "DTYPE_BF16"})",
                                           R"("precision": {"compute": "DTYPE_FP16"})"));

}  // namespace
}  // namespace fsdpd
